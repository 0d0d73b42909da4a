"""What is handed out: which pages and which ids, named by a few numbers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from .launch import Words, require_words
from .record import RECORD_WORDS


class Take(NamedTuple):
    """Which entries one ``bind`` takes: list slots first, then arithmetic runs.

    Pages: ``holes[head : head + head_count]``, ``holes[newer : newer + newer_count]``, then
    ``first_page, first_page + page_step, ...``, and for the last ``back_count`` pages ``back_page,
    back_page - page_step, ...``. Ids: ``free_ids[recycled : recycled +
    recycled_count]``, then ``first_id, first_id + 1, ...``. All counts in pages.
    """

    page_count: int
    head: int
    head_count: int
    newer: int
    newer_count: int
    first_page: int
    page_step: int
    recycled: int
    recycled_count: int
    first_id: int
    back_page: int = 0
    back_count: int = 0


def require_take(
    beside: torch.Tensor,
    v2p: torch.Tensor,
    p2v: torch.Tensor,
    holes: torch.Tensor,
    record: torch.Tensor,
    take: Take,
) -> None:
    """Raise ValueError for what the pages of ``take`` do not fit, or is not beside ``beside``."""
    require_words("v2p", v2p, 1, beside)
    require_words("p2v", p2v, 1, beside)
    require_words(
        "holes", holes, max(take.head + take.head_count, take.newer + take.newer_count), beside
    )
    require_words("record", record, RECORD_WORDS, beside)


def require_grow(
    beside: torch.Tensor,
    v2p: torch.Tensor,
    p2v: torch.Tensor,
    holes: torch.Tensor,
    free_ids: torch.Tensor,
    record: torch.Tensor,
    take: Take,
) -> None:
    """``require_take``, and the ids as well."""
    require_take(beside, v2p, p2v, holes, record, take)
    require_words("free_ids", free_ids, take.recycled + take.recycled_count, beside)


def taken_ids_host(free_ids: Words, take: Take) -> Words:
    """The ids that ``take`` names, in order."""
    ids = np.empty(take.page_count, np.int64)
    recycled = take.recycled_count
    if recycled:
        ids[:recycled] = free_ids[take.recycled : take.recycled + recycled]
    if recycled < take.page_count:
        ids[recycled:] = np.arange(take.first_id, take.first_id + take.page_count - recycled)
    return ids


def taken_pages_host(holes: Words, take: Take) -> Words:
    """The pages that ``take`` names, in order."""
    parts = []
    if take.head_count:
        parts.append(holes[take.head : take.head + take.head_count])
    if take.newer_count:
        parts.append(holes[take.newer : take.newer + take.newer_count])
    step = take.page_step
    fresh = take.page_count - take.head_count - take.newer_count - take.back_count
    if fresh:
        parts.append(np.arange(take.first_page, take.first_page + fresh * step, step))
    if take.back_count:
        parts.append(np.arange(take.back_page, take.back_page - take.back_count * step, -step))
    return parts[0] if len(parts) == 1 else np.concatenate(parts)

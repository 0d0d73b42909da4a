"""Where pages and ids that come back are listed, and who may still hold one of them."""

from __future__ import annotations

import numpy as np
import torch

from .launch import Words, require_rows, require_words
from .record import RECORD_WORDS


def require_free(
    v2p: torch.Tensor,
    p2v: torch.Tensor,
    page_count: int,
    holes: torch.Tensor,
    holes_end: int,
    free_ids: torch.Tensor | None,
    free_ids_end: int,
    record: torch.Tensor,
) -> None:
    """Raise ValueError for tables, lists or a record that ``page_count`` pages cannot go to."""
    require_words("v2p", v2p, 1, v2p)
    require_words("p2v", p2v, 1, v2p)
    require_words("holes", holes, holes_end + page_count, v2p)
    if free_ids is not None:
        require_words("free_ids", free_ids, free_ids_end + page_count, v2p)
    require_words("record", record, RECORD_WORDS, v2p)


def holder_rows(v2p: torch.Tensor, holders: torch.Tensor | None) -> tuple[torch.Tensor, int]:
    """``holders`` and how many; ValueError unless they are rows like ``v2p``."""
    if holders is None:
        return v2p, 0
    require_rows("holders", holders, v2p)
    return holders, holders.shape[0]


def freed_slots_host(
    page_count: int, holes: Words, holes_end: int, free_ids: Words | None, free_ids_end: int
) -> tuple[Words, Words]:
    """Where pages and ids that come back are listed; ids that stay another pool's go nowhere."""
    pages = holes[holes_end : holes_end + page_count]
    if free_ids is None:
        return pages, np.empty(page_count, np.int64)
    return pages, free_ids[free_ids_end : free_ids_end + page_count]

"""The host twins' way from tokens to pages: which pages they name, and each of them once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .host import unbind_good_host
from .launch import Words
from .record import (
    CORRUPT,
    ID_NOT_BOUND,
    TABLES_DISAGREE,
    TOKEN_OUT_OF_RANGE,
    USAGE,
    record_count_host,
    record_fault_host,
)

Mask = npt.NDArray[np.bool_]


def pages_of_host(
    token_ids: npt.NDArray[np.integer], page_size: int, num_ids: int
) -> tuple[Words, Mask]:
    """The virtual page of every token, and which are the pool's; the others keep the token id."""
    token = token_ids.astype(np.int64)
    in_range = (token >= page_size) & (token < num_ids * page_size)
    return np.where(in_range, token // page_size, token), in_range


def unbind_set_host(
    v2p: Words,
    p2v: Words,
    ids: Words,
    in_range: Mask,
    pages: Words,
    freed: Words,
    record: Words,
    call_tag: int,
) -> None:
    """Unbind the distinct ``ids`` that are ``in_range`` into the slots ``pages`` and ``freed``."""
    rows = np.flatnonzero(in_range)
    distinct, first = np.unique(ids[rows], return_index=True)
    first.sort()
    index = rows[first[: pages.size]]
    count = index.size
    freed[:count] = ids[index]
    freed[count:] = pages[count:] = -1
    all_good = rows.size == ids.size and count > 0
    if not (all_good and unbind_good_host(v2p, p2v, freed[:count], pages[:count])):
        asked = np.zeros(ids.size, np.bool_)
        asked[index] = True
        found = unbind_listed_host(
            v2p, p2v, ids, in_range, index, asked, TOKEN_OUT_OF_RANGE.value, record, call_tag
        )
        pages[:count], freed[:count] = (each[index] for each in found)
    if distinct.size != pages.size:
        record_count_host(record, distinct.size, call_tag)


def unbind_listed_host(
    v2p: Words,
    p2v: Words,
    ids: Words,
    in_range: Mask,
    index: Words,
    asked: Mask,
    outside: int | npt.NDArray[np.integer],
    record: Words,
    call_tag: int,
) -> tuple[Words, Words]:
    """Unbind the distinct ``ids[index]``: pages and ids as long as ``ids``, -1 where refused.

    Recorded are ids that are not ``in_range``, with the code ``outside``, and those ``asked`` for
    that are not bound, a second one of two equal ids among them.
    """
    place = np.full(ids.size, -1)
    place[index] = v2p[ids[index]]
    bound = place != -1
    page_ok = bound & (place >= 1) & (place < p2v.size)
    owner = np.where(page_ok, p2v[np.where(page_ok, place, 0)], -1)
    good = page_ok & (owner == ids)
    record_fault_host(
        record, CORRUPT.value, bound & ~good, call_tag,
        code=TABLES_DISAGREE.value, source=place, target=-1, virtual=ids,
    )  # fmt: skip
    record_fault_host(
        record, USAGE.value, ~in_range | (asked & ~bound), call_tag,
        code=np.where(in_range, ID_NOT_BOUND.value, outside), source=-1, target=-1, virtual=ids,
    )  # fmt: skip
    v2p[ids[good]] = -1
    p2v[place[good]] = -1
    return np.where(good, place, -1), np.where(good, ids, -1)

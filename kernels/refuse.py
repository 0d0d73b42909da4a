"""The host twins' slow path: which lanes of a batch are refused, and why.

The twins look at a whole batch first and come here only if something is off, so that good batches
pay for a few reductions alone. The result is what the kernels leave, lane by lane.
"""

from __future__ import annotations

import numpy as np

from .launch import Mask, Words
from .record import (
    CORRUPT,
    ID_HELD,
    ID_NOT_BOUND,
    ID_OUT_OF_RANGE,
    ID_TAKEN,
    PAGE_OUT_OF_RANGE,
    PAGE_TAKEN,
    PAGE_UNBOUND,
    TABLES_DISAGREE,
    USAGE,
    record_fault_host,
)


def gather_refusing_host(
    v2p: Words,
    p2v: Words,
    sources: Words,
    targets: Words,
    virtual_ids: Words,
    record: Words,
    call_tag: int,
) -> None:
    """``gather_virtual`` of a batch with at least one bad pair."""
    num_pages, num_ids = p2v.size, v2p.size
    source_ok = (sources >= 1) & (sources < num_pages)
    target_ok = (targets >= 1) & (targets < num_pages)
    virtual = np.where(source_ok, p2v[np.where(source_ok, sources, 0)], -1)
    occupant = np.where(target_ok, p2v[np.where(target_ok, targets, 0)], -1)
    virtual_ok = source_ok & (virtual >= 1) & (virtual < num_ids)
    back = np.where(virtual_ok, v2p[np.where(virtual_ok, virtual, 0)], -1)
    good = virtual_ok & (back == sources) & target_ok & (occupant == -1)
    virtual_ids[: sources.size] = np.where(good, virtual, -1)
    code = np.where(occupant != -1, PAGE_TAKEN.value, TABLES_DISAGREE.value)
    code = np.where(virtual == -1, PAGE_UNBOUND.value, code)
    code = np.where(source_ok & target_ok, code, PAGE_OUT_OF_RANGE.value)
    record_fault_host(
        record, CORRUPT.value, ~good, call_tag,
        code=code, source=sources, target=targets, virtual=virtual,
    )  # fmt: skip


def bind_refusing_host(
    v2p: Words,
    p2v: Words,
    out: Words,
    pages: Words,
    record: Words,
    call_tag: int,
) -> None:
    """``bind`` of a batch with a void or a bad pair; ``out`` holds the ids and is rewritten."""
    ids = out.copy()
    whole = (pages != -1) & (ids != -1)
    page_ok = whole & (pages >= 1) & (pages < p2v.size)
    in_range = page_ok & (ids >= 1) & (ids < v2p.size)
    owner = np.where(in_range, p2v[np.where(in_range, pages, 0)], -1)
    place = np.where(in_range, v2p[np.where(in_range, ids, 0)], -1)
    good = in_range & (owner == -1) & (place == -1)
    v2p[ids[good]] = pages[good]
    p2v[pages[good]] = ids[good]
    out[:] = np.where(good, ids, 0)
    code = np.where(owner != -1, PAGE_TAKEN.value, ID_TAKEN.value)
    code = np.where(in_range, code, ID_OUT_OF_RANGE.value)
    code = np.where(page_ok, code, PAGE_OUT_OF_RANGE.value)
    record_fault_host(
        record,
        CORRUPT.value,
        whole & ~good,
        call_tag,
        code=code,
        source=-1,
        target=pages,
        virtual=ids,
    )


def held_host(holders: Words | None, ids: Words, in_range: Mask) -> Mask:
    """Which ``ids``, of those ``in_range``, have a page in one of the ``holders``."""
    held = np.zeros(ids.size, np.bool_)
    if holders is not None:
        for row in holders:
            held |= in_range & (row[np.where(in_range, ids, 0)] != -1)
    return held


def unbind_refusing_host(
    v2p: Words,
    p2v: Words,
    ids: Words,
    pages: Words,
    record: Words,
    call_tag: int,
    holders: Words | None = None,
) -> None:
    """``unbind`` of a batch with a refused id; rewrites both list slots of every lane."""
    in_range = (ids >= 1) & (ids < v2p.size)
    is_held = held_host(holders, ids, in_range)
    first = np.zeros(ids.size, np.bool_)
    first[np.unique(ids, return_index=True)[1]] = True
    place = np.where(in_range & first & ~is_held, v2p[np.where(in_range, ids, 0)], -1)
    bound = place != -1
    page_ok = bound & (place >= 1) & (place < p2v.size)
    owner = np.where(page_ok, p2v[np.where(page_ok, place, 0)], -1)
    good = page_ok & (owner == ids)
    disagree = bound & ~good
    code = np.where(is_held, ID_HELD.value, ID_NOT_BOUND.value)
    code = np.where(in_range, code, ID_OUT_OF_RANGE.value)
    record_fault_host(
        record, CORRUPT.value, disagree, call_tag,
        code=TABLES_DISAGREE.value, source=place, target=-1, virtual=ids,
    )  # fmt: skip
    record_fault_host(
        record, USAGE.value, ~bound, call_tag, code=code, source=-1, target=-1, virtual=ids
    )
    v2p[ids[good]] = -1
    p2v[place[good]] = -1
    pages[:] = np.where(good, place, -1)
    ids[:] = np.where(good, ids, -1)

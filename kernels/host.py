"""The host twins' fast path: a whole batch is good and done, or nothing has changed.

A batch is checked by a few reductions. If one says no, ``refuse`` goes through it lane by lane.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from .launch import Words

FRESH_ROWS = 512
"""From this many rows on the page faults of a fresh array cost more than the look-up."""


class _Scratch(threading.local):
    """Result arrays by slot, one set a thread, grown by doubling and never shared."""

    def __init__(self) -> None:
        self.arrays: dict[int, Words] = {}
        self.counted: Words = np.arange(FRESH_ROWS)

    def words(self, slot: int, count: int) -> Words:
        array = self.arrays.get(slot)
        if array is None or array.size < count:
            array = self.arrays[slot] = np.empty(2 * count, np.int64)
        return array[:count]


_scratch = _Scratch()

_UNSIGNED: dict[int, np.dtype[Any]] = {4: np.dtype(np.uint32), 8: np.dtype(np.uint64)}


def all_below(rows: npt.NDArray[np.integer], limit: int) -> bool:
    """Whether every one of ``rows``, at least one, is in ``0..limit - 1``."""
    # As unsigned numbers negative rows are the largest, so that one search checks both ends. numpy
    # starts a search in a tenth of the time of a reduction.
    largest: int = rows.item(rows.view(_UNSIGNED[rows.itemsize]).argmax())
    return 0 <= largest < limit


def look_up(table: Words, rows: Words, slot: int = 0) -> Words:
    """``table[rows]``; IndexError for a row outside ``0..table.size - 1``, negative ones included.

    The result may be scratch memory, good until the next call with this ``slot``.
    """
    if not all_below(rows, table.size):
        raise IndexError("row outside the table")
    if rows.size < FRESH_ROWS:
        return table[rows]
    return table.take(rows, out=_scratch.words(slot, rows.size), mode="wrap")


def arithmetic_run(first: int, step: int, count: int, slot: int = 0) -> Words:
    """``first, first + step, ...`` for a step of 1 or -1: int64 [count] in scratch memory."""
    counted = _scratch.counted
    if counted.size < count:
        counted = _scratch.counted = np.arange(2 * count)
    run = _scratch.words(slot, count)
    if step == 1:
        return np.add(counted[:count], first, out=run)
    return np.subtract(first, counted[:count], out=run)


def differ(left: npt.NDArray[np.int64], right: Words | int) -> bool:
    """Whether any element, of at least one, differs."""
    unequal = left != right
    found: bool = unequal.item(unequal.argmax())
    return found


def gather_good_host(
    v2p: Words, p2v: Words, sources: Words, targets: Words, virtual_ids: Words
) -> bool:
    """Fill ``virtual_ids`` and say whether every pair is good."""
    if sources.size == 1:
        source, target = sources.item(), targets.item()
        if not (0 < source < p2v.size and 0 < target < p2v.size) or p2v.item(target) != -1:
            return False
        owner = virtual_ids[0] = p2v.item(source)
        return bool(0 < owner < v2p.size and v2p.item(owner) == source)
    try:
        owners = look_up(p2v, sources, 0)
        virtual_ids[: sources.size] = owners
        # The sink owns itself: page 0 is the one source that agrees without being allocated.
        return not (
            sources.item(sources.argmin()) == 0
            or differ(look_up(v2p, owners, 1), sources)
            or differ(look_up(p2v, targets, 1), -1)
        )
    except IndexError:
        return False


def bind_good_host(v2p: Words, p2v: Words, ids: Words, pages: Words) -> bool:
    """Bind all of ``ids`` if every pair is good; else change nothing and say False."""
    if ids.size == 1:
        virtual, page = ids.item(), pages.item()
        if not (0 < virtual < v2p.size and 0 < page < p2v.size):
            return False
        if v2p.item(virtual) != -1 or p2v.item(page) != -1:
            return False
        v2p[virtual] = page
        p2v[page] = virtual
        return True
    try:
        # Row 0 is never -1, so that the sink cannot be bound either.
        if differ(look_up(v2p, ids), -1) or differ(look_up(p2v, pages), -1):
            return False
    except IndexError:
        return False
    v2p[ids] = pages
    p2v[pages] = ids
    return True


def bind_run_host(v2p: Words, p2v: Words, ids: Words, first_page: int, page_step: int) -> bool:
    """``bind_good_host`` for pages in a run: a slice of p2v, neither gathered nor listed."""
    last_page = first_page + (ids.size - 1) * page_step
    low, high = min(first_page, last_page), max(first_page, last_page)
    if low < 1 or high >= p2v.size:
        return False
    run = p2v[low : high + 1][::page_step]
    try:
        if differ(run, -1) or differ(look_up(v2p, ids), -1):
            return False
    except IndexError:
        return False
    run[:] = ids
    v2p[ids] = arithmetic_run(first_page, page_step, ids.size)
    return True


def bind_borrowed_good_host(
    v2p: Words, p2v: Words, lender_v2p: Words, ids: Words, pages: Words
) -> bool:
    """Bind all of ``ids`` if every one is good; else change nothing and say False."""
    try:
        lent = look_up(lender_v2p, ids)
    except IndexError:
        return False
    if lent.item(lent.argmin()) == -1 or not bind_good_host(v2p, p2v, ids, pages):
        return False
    # Two equal ids name one row: the page written there by one is overwritten by the other.
    if differ(look_up(v2p, ids), pages):
        v2p[ids] = -1
        p2v[pages] = -1
        return False
    return True


def unbind_good_host(
    v2p: Words, p2v: Words, ids: Words, pages: Words, holders: Words | None = None
) -> bool:
    """Unbind all of ``ids`` and write their ``pages``; else leave the tables and say False."""
    if holders is not None:
        if not all_below(ids, v2p.size):
            return False
        for row in holders:
            if differ(row[ids], -1):
                return False
    if ids.size == 1:
        virtual = ids.item()
        if not 0 < virtual < v2p.size:
            return False
        page = v2p.item(virtual)
        if not 0 < page < p2v.size or p2v.item(page) != virtual:
            return False
        pages[0] = page
        v2p[virtual] = p2v[page] = -1
        return True
    try:
        pages[:] = look_up(v2p, ids)
        # The sink owns itself: id 0 is the one id that agrees without being allocated.
        if differ(look_up(p2v, pages), ids) or ids.item(ids.argmin()) == 0:
            return False
    except IndexError:
        return False
    # Two equal ids name one page: a tag written there by one is overwritten by the other.
    tags = np.arange(ids.size)
    p2v[pages] = tags
    if differ(look_up(p2v, pages), tags):
        p2v[pages] = ids
        return False
    p2v[pages] = -1
    v2p[ids] = -1
    return True

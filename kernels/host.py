"""What the host twins share: table look-ups that check their rows and do not allocate."""

from __future__ import annotations

import threading

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


def look_up(table: Words, rows: Words, slot: int = 0) -> Words:
    """``table[rows]``; IndexError for a row outside ``0..table.size - 1``, negative ones included.

    The result may be scratch memory, good until the next call with this ``slot``.
    """
    # As unsigned numbers negative rows are the largest, so that one reduction checks both ends.
    if np.maximum.reduce(rows.view(np.uint64)) >= table.size:
        raise IndexError("row outside the table")
    if rows.size < FRESH_ROWS:
        return table[rows]
    return table.take(rows, out=_scratch.words(slot, rows.size), mode="clip")


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
    """Whether any element differs."""
    return bool(np.count_nonzero(left != right))

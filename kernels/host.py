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

    def words(self, slot: int, count: int) -> Words:
        array = self.arrays.get(slot)
        if array is None or array.size < count:
            array = self.arrays[slot] = np.empty(2 * count, np.int64)
        return array[:count]


_scratch = _Scratch()


def look_up(table: Words, rows: Words, slot: int = 0) -> Words:
    """``table[rows]`` for rows that must not lie beyond the table; negative rows give any entry.

    The result may be scratch memory, good until the next call with this ``slot``. Raises IndexError
    for a row beyond the table.
    """
    if rows.size < FRESH_ROWS:
        return table[rows]
    if np.maximum.reduce(rows) >= table.size:
        raise IndexError(rows.max())
    return table.take(rows, out=_scratch.words(slot, rows.size), mode="clip")


def differ(left: npt.NDArray[np.int64], right: Words | int) -> bool:
    """Whether any element differs."""
    return bool(np.count_nonzero(left != right))

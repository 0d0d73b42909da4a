"""Which bytes of a buffer nobody may be given, and until what has ended."""

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

Place = tuple[str, int]
"""A physical page: its pool and its page id."""


class Kept(NamedTuple):
    """A page that is kept until all `holders` have ended."""

    place: Place
    start: int
    end: int
    holders: set[Any]


class Ledger:
    """Pages that are kept; `by_byte` counts how often each byte of the buffer is."""

    def __init__(self, total_bytes: int, page_bytes: dict[str, int]) -> None:
        self.by_byte = np.zeros(total_bytes, np.int16)
        self.places: Counter[Place] = Counter()
        self._page_bytes = page_bytes
        self._entries: list[Kept] = []

    def __iter__(self) -> Any:
        return iter(self._entries)

    def keep(self, place: Place, holders: Iterable[Any]) -> None:
        """Keep the page at `place` until all `holders` have ended, if there are any."""
        waits_for = set(holders)
        if waits_for:
            start, end = self.reach(place)
            self._entries.append(Kept(place, start, end, waits_for))
            self.by_byte[start:end] += 1
            self.places[place] += 1

    def ended(self, holder: Any) -> None:
        """`holder` has ended."""
        still = []
        for entry in self._entries:
            entry.holders.discard(holder)
            if entry.holders:
                still.append(entry)
            else:
                self.by_byte[entry.start : entry.end] -= 1
                self.places[entry.place] -= 1
        self._entries = still

    def clear(self) -> None:
        """Keep nothing."""
        self.by_byte[:] = 0
        self.places.clear()
        self._entries = []

    def reach(self, place: Place) -> tuple[int, int]:
        """First byte and end byte of the page at `place`."""
        page_bytes = self._page_bytes[place[0]]
        return place[1] * page_bytes, (place[1] + 1) * page_bytes

    def touches(self, place: Place) -> bool:
        """Whether some byte of the page at `place` is kept."""
        start, end = self.reach(place)
        return bool(self.by_byte[start:end].any())

    def touches_others(self, place: Place) -> bool:
        """Whether a byte of `place` is kept for another page than this one."""
        start, end = self.reach(place)
        return bool((self.by_byte[start:end] != self.places[place]).any())

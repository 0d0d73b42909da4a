"""Holes and free virtual ids: preallocated device lists whose lengths the host knows.

Nothing is sorted and nothing is read back to choose what to hand out next: the host computes
positions, the ``bind`` and ``unbind`` kernels read and write the entries.
"""

from __future__ import annotations

from typing import Protocol

import torch

from kvdefrag.kernels.backend import Backend, Operand


class HoleList:
    """The holes of one band: ``buffer[head : end]``, physical page ids.

    ``[head, sorted_end)`` is what the last snapshot knew, own end first, used from its head.
    ``[sorted_end, end)`` came later and is used as a stack. The two parts together never hold more
    than the pages of the band, and the first starts no later than the band's size, so a buffer of
    twice the pages never overflows: no ring, no wrap-around, no second launch.
    """

    __slots__ = ("buffer", "end", "head", "sorted_end")

    def __init__(self, backend: Backend, device: torch.device, num_pages: int) -> None:
        self.buffer: Operand = backend.operand(
            torch.empty(2 * num_pages, dtype=torch.int64, device=device)
        )
        self.reset(0)

    @property
    def count(self) -> int:
        """Pages in the list, voids of refused ids included."""
        return self.end - self.head

    def split(self, page_count: int) -> tuple[int, int]:
        """How many of ``page_count`` pages come from the sorted part and from the newer one."""
        from_sorted = min(page_count, self.sorted_end - self.head)
        return from_sorted, min(page_count - from_sorted, self.end - self.sorted_end)

    def took(self, from_sorted: int, from_newer: int) -> None:
        """Drop entries that a launch has read."""
        self.head += from_sorted
        self.end -= from_newer
        if self.head == self.end:
            self.reset(0)

    def listed(self, page_count: int) -> None:
        """Count entries that a launch has written behind ``end``."""
        self.end += page_count

    def reset(self, sorted_count: int) -> None:
        """The buffer now starts with ``sorted_count`` holes, own end first, and holds no others."""
        self.head = 0
        self.sorted_end = self.end = sorted_count


class Ids(Protocol):
    """The virtual ids of one pool, its own or borrowed ones.

    ``capacity``: they run from 1 to this. ``count``: those that could get a page now. ``buffer``:
    where ids that come back are listed, from ``recycled`` on; None where they are another pool's.
    """

    @property
    def capacity(self) -> int:
        """The highest id."""

    @property
    def count(self) -> int:
        """Ids."""

    @property
    def buffer(self) -> Operand | None:
        """int64 on the device."""

    @property
    def recycled(self) -> int:
        """Ids listed."""

    def chosen(self, page_count: int) -> tuple[int, int, int]:
        """Which ids the next take has: the first listed one, how many of those, the first fresh."""

    def took(self, page_count: int) -> None:
        """Count ids that a launch has bound."""

    def listed(self, page_count: int) -> None:
        """Count ids that a launch has unbound."""

    def clear(self) -> None:
        """No id is bound."""


class IdList:
    """The free virtual ids of one pool: a stack of used ones, then fresh ones in order.

    ``buffer[: recycled]`` holds ids that came back; ``next_fresh`` to ``capacity`` were never used.
    ``set_aside``: ids that a repair found with no certain page, in neither, and what holds each.
    """

    __slots__ = ("buffer", "capacity", "next_fresh", "recycled", "set_aside")

    def __init__(self, backend: Backend, device: torch.device, capacity: int) -> None:
        self.buffer: Operand = backend.operand(
            torch.empty(capacity, dtype=torch.int64, device=device)
        )
        self.capacity = capacity
        self.clear()

    @property
    def allocated(self) -> int:
        """Ids that are bound."""
        return self.capacity - self.count - len(self.set_aside)

    @property
    def count(self) -> int:
        """Ids that can be handed out."""
        return self.recycled + self.capacity + 1 - self.next_fresh

    def chosen(self, page_count: int) -> tuple[int, int, int]:
        """Used ones first."""
        recycled = min(page_count, self.recycled)
        return self.recycled - recycled, recycled, self.next_fresh

    def took(self, page_count: int) -> None:
        """Drop ids that a launch has read, used ones first."""
        recycled = min(page_count, self.recycled)
        self.recycled -= recycled
        self.next_fresh += page_count - recycled

    def listed(self, page_count: int) -> None:
        """Count ids that a launch has written behind ``recycled``."""
        self.recycled += page_count

    def reset(self, recycled: int, next_fresh: int) -> None:
        """The buffer now starts with ``recycled`` used ids."""
        self.recycled = recycled
        self.next_fresh = next_fresh

    def clear(self) -> None:
        """All ids are fresh."""
        self.set_aside: dict[int, object] = {}
        self.reset(0, 1)


class BorrowedIds:
    """The ids of another pool as one that borrows them sees them: ``bound`` of them have a page."""

    __slots__ = ("bound", "lender")

    buffer = None
    recycled = 0

    def __init__(self, lender: IdList) -> None:
        self.lender = lender
        self.bound = 0

    @property
    def capacity(self) -> int:
        """Ids run from 1 to this."""
        return self.lender.capacity

    @property
    def count(self) -> int:
        """Ids that are allocated in their own pool and have no page here."""
        return max(0, self.lender.allocated - self.bound)

    def chosen(self, page_count: int) -> tuple[int, int, int]:
        """None: the caller names them."""
        return 0, 0, 0

    def took(self, page_count: int) -> None:
        """Count ids that have a page now."""
        self.bound += page_count

    def listed(self, page_count: int) -> None:
        """Count ids that have none any more."""
        self.bound -= page_count

    def clear(self) -> None:
        """No id has a page."""
        self.bound = 0

"""An arena for a model's KV, with a neighbour that grows and shrinks, and poison in free bytes."""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch

from kvdefrag import Arena, MultiEndedAllocator, PoolSpec
from kvdefrag.allocator.testing import stamp_pages, wrong_pages

POISON = -1
"""Every byte 0xFF, in words of any width: a NaN."""


class Neighbour:
    """Holds pages of `pool`, `most_pages` at most, each with its byte pattern.

    `wrong` names the pages that had lost it when they were freed.
    """

    def __init__(self, pool: MultiEndedAllocator, most_pages: int) -> None:
        self._pool = pool
        self._most_pages = most_pages
        self._rng = np.random.default_rng(1)
        self._held: list[int] = []
        self._wanted = 0
        self.wrong: list[str] = []

    @property
    def short(self) -> bool:
        """Whether others would have to free pages for the size that it wants."""
        return self._wanted - len(self._held) > self._pool.available()

    def choose(self) -> None:
        """Want another size."""
        self._wanted = int(self._rng.integers(self._most_pages + 1))

    def resize(self) -> None:
        """Become as large as wanted, or stay if there is no room for that."""
        page_count = self._wanted - len(self._held)
        if page_count > 0:
            grown = self._pool.try_alloc(page_count)
            if grown is not None:
                stamp_pages(self._pool, grown)
                self._held += grown.tolist()
        elif page_count < 0:
            self._rng.shuffle(self._held)
            gone = torch.tensor(self._held[page_count:])
            self.wrong += wrong_pages(self._pool, gone)
            self._pool.free(gone)
            del self._held[page_count:]


class PressedArena:
    """The pool "kv" and, from the other end of the buffer, a neighbour.

    `pressed`: pages are packed between forwards, and after every call each byte that belongs to no
    live page, the sink's included, is poisoned. `moves` counts moved pages by what moved them.
    """

    def __init__(
        self, backend: str, kv: PoolSpec, num_pages: int, neighbours: int, pressed: bool
    ) -> None:
        beside = PoolSpec("neighbour", kv.page_bytes * 3 // 2, grows="down")
        self.arena = Arena(num_pages * kv.page_bytes, [kv, beside], "cpu", backend)
        self.pool = self.arena[kv.name]
        self.neighbour = Neighbour(self.arena["neighbour"], neighbours)
        self.moves: Counter[str] = Counter()
        self._pressed = pressed
        self._settle("start")

    def alloc(self, page_count: int) -> list[int]:
        """Virtual ids of pages that are known to fit."""
        virtual_ids = self.pool.alloc(page_count)
        if self._pressed:
            # Whatever the allocation has just moved away from here.
            self.pool.pages.view(torch.int64)[self.pool.translate(virtual_ids)] = POISON
        self._settle("alloc")
        return virtual_ids.tolist()

    def free(self, virtual_ids: Sequence[int]) -> None:
        """Give pages back."""
        self.pool.free(torch.tensor(virtual_ids, dtype=torch.int64))
        self._settle("free")

    def resize_neighbour(self) -> None:
        """See `Neighbour.resize`."""
        self.neighbour.resize()
        self._settle("neighbour")

    def pack(self, step: int) -> None:
        """Under pressure, move pages: often a few, now and then all."""
        if not self._pressed:
            return
        if step % 8 == 7:
            self.arena.flush(urgent=True)
            self._settle("urgent flush")
        elif step % 2:
            self.arena.flush(max_moves=4)
            self._settle("idle flush")

    def _settle(self, cause: str) -> None:
        self.moves[cause] += self.arena.stats().moves - self.moves.total()
        if self._pressed:
            self._poison()

    def _poison(self) -> None:
        pools = self.arena.pools.values()
        unit = math.gcd(*(pool.page_bytes for pool in pools))
        units = self.arena.buffer.view(-1, unit).view(torch.int64)
        free = torch.ones(len(units), dtype=torch.bool)
        for pool in pools:
            live = pool.physical_to_virtual > 0
            units_per_page = pool.page_bytes // unit
            free[: pool.num_pages * units_per_page].view(-1, units_per_page)[live] = False
        units[free] = POISON

"""free, flush, alloc and back to full: one pool without its bytes, ours or a baseline's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch

from kvdefrag import Arena, CorruptState, PoolSpec
from kvdefrag.kernels.backend import choose_backend

from .baseline_arena import violations
from .baselines import POLICIES, single_pool
from .interleaved import DEVICE, OURS, backend_name

PAGE_BYTES = 64


class Counts(NamedTuple):
    """Of one call; ``launches`` and ``h2d`` are None where a pool does not count them."""

    launches: int | None
    d2h: int
    h2d: int | None


class CyclePool(Protocol):
    """A pool that is packed by ``flush``, which returns the moves, and by nothing else."""

    def alloc(self, page_count: int) -> torch.Tensor:
        """int64 virtual ids [page_count]."""

    def free(self, virtual_ids: torch.Tensor) -> None:
        """Take ids back."""

    def flush(self) -> int:
        """Pack fully."""

    def check(self) -> None:
        """Raise if tables or lists are wrong."""

    def counts(self) -> Counts:
        """Totals so far."""


class OurPool:
    """kvdefrag; the mover leaves the copy out."""

    def __init__(self, num_pages: int) -> None:
        spec = PoolSpec("pool", page_bytes=PAGE_BYTES, mover=lambda sources, targets: None)
        self.arena = Arena(num_pages * PAGE_BYTES, [spec], device=DEVICE)
        self.alloc = self.arena["pool"].alloc
        self.free = self.arena["pool"].free

    def flush(self) -> int:
        """Pack fully."""
        return self.arena["pool"].flush(urgent=True).moves

    def check(self) -> None:
        """Every invariant."""
        self.arena.check(deep=True)

    def counts(self) -> Counts:
        """Totals so far."""
        stats = self.arena.stats()
        return Counts(stats.launches, stats.device_to_host_copies, stats.host_to_device_copies)


class TheirPool:
    """The baseline called ``name``."""

    def __init__(self, name: str, num_pages: int) -> None:
        self.pool = single_pool(POLICIES[name], num_pages, PAGE_BYTES, DEVICE)
        self.alloc, self.free, self.flush = self.pool.alloc, self.pool.free, self.pool.flush

    def check(self) -> None:
        """Its tables and lists."""
        if found := violations(self.pool):
            raise CorruptState(found)

    def counts(self) -> Counts:
        """Totals so far."""
        return Counts(None, self.pool.tally.device_to_host_copies, None)


class Cycle:
    """One pool of ``live_pages``, of which ``holes`` at random places are freed in each cycle."""

    def __init__(self, contender: str, holes: int, live_pages: int) -> None:
        num_pages = live_pages + 1
        self.contender = contender
        self.pool: CyclePool = (
            OurPool(num_pages) if contender == OURS else TheirPool(contender, num_pages)
        )
        self.holes = holes
        self.live_pages = live_pages
        self.live = self.pool.alloc(live_pages)
        self.generator = torch.Generator().manual_seed(holes)
        self.granted = self.live[:0]
        self.moves = 0

    def prepare(self, op: str) -> Callable[[], Any]:
        """Bring the pool to where ``op`` starts; returns the call to time."""
        self.pool.flush()
        missing = self.live_pages - len(self.live) - len(self.granted)
        everything = torch.cat([self.live, self.granted, self.pool.alloc(missing)])
        self.granted = self.live[:0]
        order = torch.randperm(self.live_pages, generator=self.generator).to(DEVICE)
        freed, self.live = everything[order[: self.holes]], everything[order[self.holes :]]
        if op == "free":
            return lambda: self.pool.free(freed)
        self.pool.free(freed)
        if op == "flush":
            return self._flush
        self._flush()
        return self._alloc

    def figures(self, op: str) -> dict[str, Any]:
        """Check the pool, then count what one more ``op`` takes."""
        self.pool.check()
        call = self.prepare(op)
        before = self.pool.counts()
        call()
        after = self.pool.counts()
        self.pool.check()
        found = {
            "op": op,
            "holes": self.holes,
            "fragmentation": self.holes / self.live_pages,
            "moves": self.moves if op == "flush" else 0,
            "backend": backend_name(self.contender, choose_backend("auto", DEVICE).name),
            "d2h": after.d2h - before.d2h,
        }
        if before.launches is not None and after.launches is not None:
            found["launches"] = after.launches - before.launches
        if before.h2d is not None and after.h2d is not None:
            found["h2d"] = after.h2d - before.h2d
        found["pages_moved"] = found["moves"]
        return found

    def _flush(self) -> None:
        self.moves = self.pool.flush()

    def _alloc(self) -> None:
        self.granted = self.pool.alloc(max(1, self.holes // 2))

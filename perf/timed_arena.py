"""The arena with a stopwatch: host nanoseconds of every alloc, free and flush."""

from collections.abc import Mapping
from time import perf_counter_ns

import torch

from kvdefrag import Arena


class TimedArena:
    """Passes calls on to an arena, and keeps what each cost the host.

    `alloc_ns`, `free_ns` and `flush_ns` hold one entry a call, in nanoseconds. Flushes run inside
    allocations; the arena times them itself, and their time is taken off the allocation. All
    flushes of one allocation are one entry, and only those that moved pages are seen.
    """

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self.alloc_ns: list[int] = []
        self.free_ns: list[int] = []
        self.flush_ns: list[int] = []
        self._layout_version = arena.layout_version
        self._flush_host_ns = 0

    def try_alloc(self, pool: str, page_count: int) -> torch.Tensor | None:
        """Allocate from one pool: int64 virtual ids `[page_count]`, or None if they do not fit."""
        start = perf_counter_ns()
        ids = self.arena[pool].try_alloc(page_count)
        self._note_alloc(perf_counter_ns() - start)
        return ids

    def alloc_many(self, page_counts: Mapping[str, int]) -> dict[str, torch.Tensor]:
        """Allocate from several pools, all or nothing: int64 virtual ids by pool."""
        start = perf_counter_ns()
        ids = self.arena.alloc_many(page_counts)
        self._note_alloc(perf_counter_ns() - start)
        return ids

    def free(self, pool: str, virtual_ids: torch.Tensor) -> None:
        """Free pages of one pool by their virtual ids."""
        start = perf_counter_ns()
        self.arena[pool].free(virtual_ids)
        self.free_ns.append(perf_counter_ns() - start)

    def _note_alloc(self, elapsed_ns: int) -> None:
        if self.arena.layout_version != self._layout_version:
            self._layout_version = self.arena.layout_version
            flush_host_ns = self.arena.stats().flush_host_ns
            # An earlier flush without moves may be in the difference: never more than the call.
            flush_ns = min(flush_host_ns - self._flush_host_ns, elapsed_ns)
            self.flush_ns.append(flush_ns)
            self._flush_host_ns = flush_host_ns
            elapsed_ns -= flush_ns
        self.alloc_ns.append(elapsed_ns)

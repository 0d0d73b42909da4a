"""The arena with a stopwatch: host nanoseconds of every alloc, free and flush."""

from collections.abc import Callable, Mapping
from time import perf_counter_ns

import torch

from .arena_face import ArenaFace, SharingPoolFace


class TimedArena:
    """Passes calls on to an arena, and keeps what each cost the host.

    `alloc_ns`, `free_ns` and `flush_ns` hold one entry a call, in nanoseconds. Flushes run inside
    allocations (those of an eager baseline inside frees); the arena times them itself, and their
    time is taken off that call. All flushes of one call are one entry, and only those that moved
    pages are seen. `before_alloc` runs before each allocation, `after_flush` after a call whose
    flushes moved pages; neither is timed.
    """

    def __init__(self, arena: ArenaFace) -> None:
        self.arena = arena
        self.before_alloc: Callable[[Mapping[str, int]], None] = lambda page_counts: None
        self.after_flush: Callable[[], None] = lambda: None
        self.alloc_ns: list[int] = []
        self.free_ns: list[int] = []
        self.flush_ns: list[int] = []
        self._layout_version = arena.layout_version
        self._flush_host_ns = 0

    def try_alloc(self, pool: str, page_count: int) -> torch.Tensor | None:
        """Allocate from one pool: int64 virtual ids `[page_count]`, or None if they do not fit."""
        self.before_alloc({pool: page_count})
        start = perf_counter_ns()
        ids = self.arena[pool].try_alloc(page_count)
        self._note(self.alloc_ns, perf_counter_ns() - start)
        return ids

    def alloc_many(self, page_counts: Mapping[str, int]) -> dict[str, torch.Tensor]:
        """Allocate from several pools, all or nothing: int64 virtual ids by pool."""
        self.before_alloc(page_counts)
        start = perf_counter_ns()
        ids = self.arena.alloc_many(page_counts)
        self._note(self.alloc_ns, perf_counter_ns() - start)
        return ids

    def free(self, pool: str, virtual_ids: torch.Tensor) -> None:
        """Free pages of one pool by their virtual ids."""
        start = perf_counter_ns()
        self.arena[pool].free(virtual_ids)
        self._note(self.free_ns, perf_counter_ns() - start)

    def bind(self, pool: SharingPoolFace, virtual_ids: torch.Tensor) -> None:
        """Give pages of `pool` to ids of the pool that it borrows from: an allocation."""
        self.before_alloc({pool.name: virtual_ids.shape[0]})
        start = perf_counter_ns()
        pool.bind(virtual_ids)
        self._note(self.alloc_ns, perf_counter_ns() - start)

    def release(self, pool: SharingPoolFace, virtual_ids: torch.Tensor, page_count: int) -> None:
        """Take `page_count` pages of borrowed ids back; the list may have gaps."""
        start = perf_counter_ns()
        pool.release(virtual_ids, page_count)
        self._note(self.free_ns, perf_counter_ns() - start)

    def free_lent(
        self, pool: SharingPoolFace, virtual_ids: torch.Tensor, cascade: Mapping[str, int]
    ) -> None:
        """Free pages of one pool, and `cascade` of them in those that borrow their ids."""
        start = perf_counter_ns()
        pool.free(virtual_ids, cascade=cascade)
        self._note(self.free_ns, perf_counter_ns() - start)

    def _note(self, calls_ns: list[int], elapsed_ns: int) -> None:
        moved = self.arena.layout_version != self._layout_version
        if moved:
            self._layout_version = self.arena.layout_version
            flush_host_ns = self.arena.stats().flush_host_ns
            # An earlier flush without moves may be in the difference: never more than the call.
            flush_ns = min(flush_host_ns - self._flush_host_ns, elapsed_ns)
            self.flush_ns.append(flush_ns)
            self._flush_host_ns = flush_host_ns
            elapsed_ns -= flush_ns
        calls_ns.append(elapsed_ns)
        if moved:
            self.after_flush()

"""Arena: one byte buffer and the pools that share it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .arguments import (
    check_page_bytes,
    checked_buffer,
    checked_device,
    checked_specs,
    chosen_backend,
    pool_counts,
)
from .compactor import NOTHING
from .faults import CorruptState, UsageError
from .feasibility import feasibility
from .geometry import PoolSpec, place_bands, require_count
from .grant import bind_many, make_room
from .groups import FreeGroup
from .hazards import Fence, Forward, MoveBlock, PageSet, require_fence
from .invariants import all_violations
from .limits import FlushResult, flush_limit
from .pool import MultiEndedAllocator, ids_by_pool
from .prewarm import prewarm
from .repair import RepairReport, repair
from .shared import assemble
from .stats import ArenaStats, PoolStats

MAX_BYTES = 2**63 - 1
"""Addresses are 64-bit."""


class Arena:
    """A byte buffer shared by pools: one at each end, any number that float between them.

    ``total_bytes``: size of the buffer. ``pools``: their specifications. ``device``: where buffer
    and tables live, by default the buffer's device or "cuda". ``backend``: "triton", "host" (numpy
    on CPU tensors) or "auto". ``debug``: every call checks its ids against the tables at once,
    which reads the device. ``buffer``: the engine's own contiguous uint8 tensor [total_bytes];
    without it one is made, zeroed, unless every pool has a mover. ``largest_request``: pages by
    pool name of the worst request, which an empty arena must be able to serve.

    Raises UsageError for a wrong argument, for a buffer too small for its pools, and for one that
    cannot serve ``largest_request``, before anything is made on the device.
    """

    __slots__ = ("_bands", "_pools", "_shared", "buffer", "total_bytes")

    feasibility = staticmethod(feasibility)

    def __init__(
        self,
        total_bytes: int,
        pools: Sequence[PoolSpec],
        device: torch.device | str | None = None,
        backend: str = "auto",
        debug: bool = False,
        buffer: torch.Tensor | None = None,
        largest_request: Mapping[str, int] | None = None,
    ) -> None:
        self.total_bytes = require_count("total_bytes", total_bytes, minimum=1)
        if self.total_bytes > MAX_BYTES:
            raise UsageError(f"total_bytes: expected {MAX_BYTES} at most, got {total_bytes}")
        specs = checked_specs(pools)
        geometries = place_bands(specs, self.total_bytes)
        report = feasibility(self.total_bytes, specs, largest_request).require()
        largest = {pool.name: pool.largest_allocation for pool in report.pools}
        place = checked_device(device, buffer)
        chosen = chosen_backend(backend, place)
        # Made for every mode, also where the arena is built in inference mode.
        with torch.inference_mode(False):
            self.buffer = checked_buffer(buffer, self.total_bytes, place, specs)
            check_page_bytes(self.buffer, chosen, specs)
            self._shared, self._bands = assemble(
                specs, geometries, chosen, place, self.buffer, self.total_bytes, debug
            )
            self._pools = {
                spec.name: MultiEndedAllocator(self._shared, band, self.buffer, largest[spec.name])
                for spec, band in zip(specs, self._bands, strict=True)
            }

    def __getitem__(self, name: str) -> MultiEndedAllocator:
        """The pool called ``name``."""
        try:
            return self._pools[name]
        except (KeyError, TypeError):
            raise UsageError(f"name: no pool {name!r}, the pools are {list(self._pools)}") from None

    @property
    def pools(self) -> dict[str, MultiEndedAllocator]:
        """All pools by name."""
        return dict(self._pools)

    @property
    def device(self) -> torch.device:
        """Where the buffer and the tables live."""
        return self._shared.device

    @property
    def layout_version(self) -> int:
        """Changes whenever pages have moved, and on nothing else: older translations are stale."""
        return self._shared.counters.layout_version

    def fits(self, page_counts: Mapping[str, int]) -> bool:
        """Whether ``page_counts``, pages by pool name, would be granted together.

        By ``alloc_many``, that is; pages of a pool that borrows its ids may also be for ids that
        are allocated already, and then ``bind`` grants them. Side-effect free.
        """
        self._shared.record.raise_if_stopped()
        asked = pool_counts("page_counts", page_counts, list(self._pools))
        return self._shared.capacity.short_of(asked) is None

    def alloc_many(self, page_counts: Mapping[str, int]) -> dict[str, torch.Tensor]:
        """``alloc`` in several pools, all or nothing: virtual ids by pool name.

        A pool that borrows its ids gives pages to the last of those that are allocated here in
        their own. Raises OutOfPages, with nothing changed, if they do not fit together.
        """
        shared = self._shared
        asked = pool_counts("page_counts", page_counts, list(self._pools))
        shared.record.raise_if_stopped()
        for band in self._bands:
            lender, count = band.spec.ids_from, asked.get(band.spec.name, 0)
            if lender is not None and count > asked.get(lender, 0):
                raise UsageError(
                    f"page_counts[{band.spec.name!r}]: {count} pages, but {asked.get(lender, 0)} "
                    f"ids are asked of {lender!r}"
                )
        shared.counters.alloc_calls += 1
        make_room(shared, asked)
        return bind_many(shared, asked)

    def flush(
        self,
        urgent: bool = False,
        max_moves: int | None = None,
        max_bytes: int | None = None,
    ) -> dict[str, FlushResult]:
        """``flush`` of every pool with one read-back; the limits hold for the sum of the pools."""
        self._shared.record.raise_if_stopped()
        limit = flush_limit(urgent, max_moves, max_bytes)
        for band in self._bands:
            if not band.at_rest:
                return self._shared.compactor.flush(self._bands, limit)
        return dict.fromkeys(self._pools, NOTHING)

    def forward_launched(
        self,
        fence: Fence,
        writes: Mapping[str, Any] | None = None,
        token_writes: Mapping[str, Any] | None = None,
    ) -> None:
        """Note that a forward was launched whose end ``fence`` will show.

        ``fence``: an object with ``query()`` and ``wait()``, such as a ``torch.cuda.Event``; many
        forwards may share one. ``writes``: virtual ids by pool name of the pages that the forward
        writes; ``token_writes``: the same as token ids. Both int32 or int64 [ids] on the device, or
        host lists. Their physical places are fixed now, in one launch for every pool named: until
        the fence is done, no idle flush moves or fills these pages. Pages that a forward only
        reads may move; the old place stays pending until then. Padding ids (unbound, or 0) are
        ignored. Raises UsageError, with nothing noted, for a wrong argument.
        """
        shared = self._shared
        shared.record.raise_if_stopped()
        require_fence(fence)
        pools = self._pools
        pages = ids_by_pool("writes", writes, pools)
        tokens = ids_by_pool("token_writes", token_writes, pools)
        written: dict[int, list[PageSet]] = {band.index: [] for band in self._bands}
        for name, ids in pages.items():
            written[pools[name].index].append(pools[name].places_of(ids))
        for name, ids in tokens.items():
            written[pools[name].index].append(pools[name].places_of_tokens(ids))
        free_calls = {
            band.index: band.hazards.free_calls for band in self._bands if written[band.index]
        }
        shared.hazards.launched(Forward(fence, written, free_calls))

    def free_group(self, page_counts: Mapping[str, int] | None = None) -> FreeGroup:
        """A context manager that collects frees of all pools and applies them when it ends.

        One launch for every pool named in it, pools that borrow ids first, each page freed once.
        The ids must stay as they are until then. ``page_counts``: distinct pages by pool name,
        needed where calls of the group share a page; what calls state is checked by its sum. If the
        block raises, nothing is freed.
        """
        counts = {} if page_counts is None else page_counts
        return FreeGroup(self._shared, pool_counts("page_counts", counts, list(self._pools)))

    def block_moves(self, reason: str) -> MoveBlock:
        """Keep every page where it is until the handle is released; also a context manager.

        Blocks nest: pages move again when all handles are released. Frees, absorption and
        allocations that need no move go on, and ``available`` answers for that state. ``reason``
        names the holder in ``stats().move_blocks``.
        """
        self._shared.record.raise_if_stopped()
        return self._shared.hazards.block(reason)

    def prewarm(self) -> float:
        """Compile and launch every kernel that this arena can use; returns the seconds it took.

        Changes no table, list or byte. Afterwards no call compiles or loads anything.
        """
        self._shared.record.raise_if_stopped()
        return prewarm(self._shared.backend, self._bands, self.buffer, self._shared.device)

    def check(self, deep: bool = False) -> None:
        """Raise what the device has recorded since the last look: UsageError or CorruptState.

        ``deep`` also reads the tables and lists back and raises CorruptState with every violated
        invariant. Waits for the device. Returns None if all is well.
        """
        self._shared.record.raise_if_stopped()
        self._shared.compactor.check_record()
        if deep:
            violations = all_violations(self._bands, self.total_bytes, self._shared.capacity)
            if violations:
                raise CorruptState(violations, journal=self._shared.record.journal())

    def repair(self) -> RepairReport:
        """Rebuild holes, free ids, counts and frontiers from the tables, and report what changed.

        The way on after a CorruptState: afterwards every invariant holds and calls work again.
        Pending and leased pages keep their state. A page whose owner the tables do not agree on is
        listed in the report, not guessed at: it and its ids are set aside until
        ``report.release()``. Bytes that are gone do not come back. Waits for the device, and
        where a pool is rebuilt the stream waits for the forwards in flight. Raises CorruptState if
        two pools claim the same bytes.
        """
        shared = self._shared
        return repair(self._bands, shared.record, shared.backend, shared.hazards, self.total_bytes)

    def clear(self) -> None:
        """Every page free, tables, lists and fault record as new. The bytes stay.

        The stream waits for the forwards in flight. Raises UsageError while pages are leased or a
        free group is open.
        """
        if self._shared.groups:
            raise UsageError("clear: a free group is open")
        for band in self._bands:
            if band.hazards.leases:
                raise UsageError(
                    f"clear: {len(band.hazards.leases)} leases hold pages of {band.spec.name!r}"
                )
        self._shared.hazards.wait(each for band in self._bands for each in band.hazards.pending)
        for band in self._bands:
            band.clear()
        self._shared.record.clear()

    def stats(self) -> ArenaStats:
        """What happened so far. Reads nothing from the device."""
        counters, backend = self._shared.counters, self._shared.backend
        return ArenaStats(
            alloc_calls=counters.alloc_calls,
            free_calls=counters.free_calls,
            flush_calls=counters.flush_calls,
            flushes_with_moves=counters.flushes_with_moves,
            flush_host_ns=counters.flush_host_ns,
            moves=counters.moves,
            bytes_moved=counters.bytes_moved,
            absorbed=counters.absorbed,
            layout_version=counters.layout_version,
            forwards_in_flight=self._shared.hazards.forwards_in_flight,
            fence_waits=self._shared.hazards.fence_waits,
            move_blocks=self._shared.hazards.block_counts(),
            launches=backend.launches,
            device_to_host_copies=backend.device_to_host_copies,
            host_to_device_copies=backend.host_to_device_copies,
            pools={
                band.spec.name: PoolStats(
                    live_pages=band.live,
                    hole_pages=band.holes.count,
                    pending_pages=band.hazards.pending_pages,
                    span_pages=band.span,
                    peak_hole_pages=band.peak_holes,
                    free_ids=band.ids.count,
                    leases=len(band.hazards.leases),
                )
                for band in self._bands
            },
        )

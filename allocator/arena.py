"""Arena: one byte buffer and the pools that share it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from kvdefrag.kernels.backend import Backend, choose_backend

from .arguments import pool_counts
from .band import Band
from .capacity import Capacity
from .compactor import Compactor, FlushResult
from .faults import CorruptState, FaultRecord, UsageError
from .geometry import PoolSpec, place_bands, require_count
from .invariants import all_violations
from .pool import MultiEndedAllocator, Shared, bind_pages, flush_limit, make_room
from .prewarm import prewarm
from .stats import ArenaStats, Counters, PoolStats

MAX_BYTES = 2**63 - 1
"""Addresses are 64-bit."""


class Arena:
    """A byte buffer shared by one pool, or by two that grow towards each other.

    ``total_bytes``: size of the buffer. ``pools``: their specifications. ``device``: where buffer
    and tables live, by default the buffer's device or "cuda". ``backend``: "triton", "host" (numpy
    on CPU tensors) or "auto". ``debug``: every call checks its ids against the tables at once,
    which reads the device. ``buffer``: the engine's own contiguous uint8 tensor [total_bytes];
    without it one is made, zeroed, unless every pool has a mover.

    Raises UsageError for a wrong argument and for a buffer too small for its pools.
    """

    __slots__ = ("_bands", "_pools", "_shared", "buffer", "total_bytes")

    def __init__(
        self,
        total_bytes: int,
        pools: Sequence[PoolSpec],
        device: torch.device | str | None = None,
        backend: str = "auto",
        debug: bool = False,
        buffer: torch.Tensor | None = None,
    ) -> None:
        self.total_bytes = require_count("total_bytes", total_bytes, minimum=1)
        if self.total_bytes > MAX_BYTES:
            raise UsageError(f"total_bytes: expected {MAX_BYTES} at most, got {total_bytes}")
        specs = _checked_specs(pools)
        geometries = place_bands(specs, self.total_bytes)
        place = _checked_device(device, buffer)
        chosen = _chosen_backend(backend, place)
        # Made for every mode, also where the arena is built in inference mode.
        with torch.inference_mode(False):
            self.buffer = _checked_buffer(buffer, self.total_bytes, place, specs)
            _check_page_bytes(self.buffer, chosen, specs)
            record = FaultRecord(chosen, place, [spec.name for spec in specs])
            self._bands = [
                Band(spec, index, geometry, chosen, record, place)
                for index, (spec, geometry) in enumerate(zip(specs, geometries, strict=True))
            ]
            counters = Counters()
            self._shared = Shared(
                chosen,
                place,
                record,
                Capacity(self._bands),
                Compactor(chosen, record, self._bands, self.buffer, counters, place, debug),
                counters,
                debug,
            )
            self._pools = {
                band.spec.name: MultiEndedAllocator(self._shared, band, self.buffer)
                for band in self._bands
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

        Side-effect free.
        """
        self._shared.record.raise_if_stopped()
        asked = pool_counts("page_counts", page_counts, list(self._pools))
        return self._shared.capacity.short_of(asked) is None

    def alloc_many(self, page_counts: Mapping[str, int]) -> dict[str, torch.Tensor]:
        """``alloc`` in several pools, all or nothing: virtual ids by pool name.

        Raises OutOfPages, with nothing changed, if they do not fit together.
        """
        shared = self._shared
        asked = pool_counts("page_counts", page_counts, list(self._pools))
        shared.record.raise_if_stopped()
        shared.counters.alloc_calls += 1
        make_room(shared, asked)
        return {
            band.spec.name: bind_pages(shared, band, asked[band.spec.name])
            for band in self._bands
            if band.spec.name in asked
        }

    def flush(
        self,
        urgent: bool = False,
        max_moves: int | None = None,
        max_bytes: int | None = None,
    ) -> dict[str, FlushResult]:
        """``flush`` of every pool with one read-back; the limits hold for the sum of the pools."""
        self._shared.record.raise_if_stopped()
        limit = flush_limit(urgent, max_moves, max_bytes)
        return self._shared.compactor.flush(self._bands, limit)

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
            violations = all_violations(self._bands, self.total_bytes)
            if violations:
                raise CorruptState(violations)

    def clear(self) -> None:
        """Every page free, tables, lists and fault record as new. The bytes stay."""
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
            launches=backend.launches,
            device_to_host_copies=backend.device_to_host_copies,
            host_to_device_copies=backend.host_to_device_copies,
            pools={
                band.spec.name: PoolStats(
                    live_pages=band.live,
                    hole_pages=band.holes.count,
                    span_pages=band.span,
                    peak_hole_pages=band.peak_holes,
                    free_ids=band.ids.count,
                )
                for band in self._bands
            },
        )


def _checked_specs(pools: Any) -> list[PoolSpec]:
    if not isinstance(pools, Sequence) or not all(isinstance(spec, PoolSpec) for spec in pools):
        raise UsageError(f"pools: expected a list of PoolSpec, got {pools!r}")
    if not 1 <= len(pools) <= 2:
        raise UsageError(f"pools: expected one or two pools, got {len(pools)}")
    names = [spec.name for spec in pools]
    if len(set(names)) != len(names):
        raise UsageError(f"pools: expected distinct names, got {names}")
    return list(pools)


def _checked_device(device: Any, buffer: Any) -> torch.device:
    if buffer is not None and not isinstance(buffer, torch.Tensor):
        raise UsageError(f"buffer: expected a 1-D uint8 tensor, got {buffer!r}")
    if device is None:
        device = buffer.device if isinstance(buffer, torch.Tensor) else "cuda"
    try:
        place = torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, TypeError) as error:
        raise UsageError(f"device: {device!r} cannot be used: {error}") from error
    if place.type not in ("cpu", "cuda"):
        raise UsageError(f"device: expected a cpu or cuda device, got {place}")
    return place


def _chosen_backend(name: str, device: torch.device) -> Backend:
    try:
        return choose_backend(name, device)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _check_page_bytes(
    buffer: torch.Tensor | None, backend: Backend, specs: Sequence[PoolSpec]
) -> None:
    for spec in specs:
        if spec.mover is None and buffer is not None:
            try:
                backend.check_page_bytes(buffer, spec.page_bytes)
            except ValueError as error:
                raise UsageError(f"pool {spec.name!r}: {error}") from None


def _checked_buffer(
    buffer: torch.Tensor | None, total_bytes: int, device: torch.device, specs: Sequence[PoolSpec]
) -> torch.Tensor | None:
    if buffer is None:
        if all(spec.mover is not None for spec in specs):
            return None
        return torch.zeros(total_bytes, dtype=torch.uint8, device=device)
    if buffer.dtype != torch.uint8 or buffer.dim() != 1:
        raise UsageError(
            f"buffer: expected a 1-D uint8 tensor, got {buffer.dtype} {list(buffer.shape)}"
        )
    if not buffer.is_contiguous():
        raise UsageError(f"buffer: expected a contiguous tensor, got stride {buffer.stride(0)}")
    if buffer.device != device:
        raise UsageError(f"buffer: expected device {device}, got {buffer.device}")
    if buffer.numel() != total_bytes:
        raise UsageError(f"buffer: expected {total_bytes} bytes, got {buffer.numel()}")
    return buffer

"""flush = snapshot -> plan -> move batch -> commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import NamedTuple

import torch

from kvdefrag.kernels.backend import Backend, Operand
from kvdefrag.kernels.launch import Words

from .band import Band
from .debug import check_disjoint
from .faults import FaultRecord
from .plan import MovePlan, moves_to_reach, plan_moves
from .rebuild import raise_faults
from .snapshot import SnapshotReader, sorted_depths
from .stats import Counters

Batch = tuple[Band, Operand, Operand]
"""A band that moves pages, and their sources and targets on the device."""

MoveLimit = Callable[[Band, Words], "int | None"]
"""How many moves a flush may make in a band with these sorted hole depths; None: no limit."""


class FlushResult(NamedTuple):
    """What one flush did to one pool.

    ``moves``: pages moved, which is the number of changed v2p rows. ``bytes_moved``: their page
    bytes. ``absorbed``: holes given back without a move. ``pending``: pages pending now.
    ``stopped_by``: why it ended early: "budget", or "" if it did not.
    """

    moves: int = 0
    bytes_moved: int = 0
    absorbed: int = 0
    pending: int = 0
    stopped_by: str = ""


NOTHING = FlushResult()


def without_limit(band: Band, holes: Words) -> None:
    """Pack fully."""


class Budget:
    """A limit of moves and of bytes for one flush, shared by the pools that it visits."""

    __slots__ = ("_bytes", "_moves")

    def __init__(self, max_moves: int | None, max_bytes: int | None) -> None:
        self._moves = max_moves
        self._bytes = max_bytes

    def __call__(self, band: Band, holes: Words) -> int | None:
        """The moves left for ``band``, charged at once with what the plan will use of them."""
        limits = [] if self._moves is None else [self._moves]
        if self._bytes is not None:
            limits.append(self._bytes // band.spec.page_bytes)
        limit = min(limits)
        used = min(limit, moves_to_reach(holes, band.span, band.live))
        if self._moves is not None:
            self._moves -= used
        if self._bytes is not None:
            self._bytes -= used * band.spec.page_bytes
        return limit


class Need:
    """Pack only until the bands are no longer than ``span_limits``, in pages by pool name."""

    __slots__ = ("_span_limits",)

    def __init__(self, span_limits: dict[str, int]) -> None:
        self._span_limits = span_limits

    def __call__(self, band: Band, holes: Words) -> int:
        """Moves that free what is asked of ``band``."""
        return moves_to_reach(holes, band.span, self._span_limits[band.spec.name])


class Compactor:
    """Runs flushes over bands of one arena, with buffers made up front."""

    __slots__ = (
        "_backend", "_buffer", "_counters", "_debug", "_reader", "_record", "_upload",
        "_virtual_ids", "bands",
    )  # fmt: skip

    def __init__(
        self,
        backend: Backend,
        record: FaultRecord,
        bands: Sequence[Band],
        buffer: torch.Tensor | None,
        counters: Counters,
        device: torch.device,
        debug: bool,
    ) -> None:
        self._backend = backend
        self._record = record
        self.bands = bands
        self._buffer: Operand = None if buffer is None else backend.operand(buffer)
        self._counters = counters
        self._debug = debug
        self._reader = SnapshotReader(backend, record, bands)
        page_counts = [band.geometry.num_pages for band in bands]
        self._upload = backend.staging(2 * sum(page_counts))
        self._virtual_ids = backend.operand(
            torch.empty(max(page_counts), dtype=torch.int64, device=device)
        )

    def flush(self, bands: Sequence[Band], move_limit: MoveLimit) -> dict[str, FlushResult]:
        """Compact ``bands``, each within ``move_limit``; results by pool name.

        One device-to-host copy, at most one host-to-device copy. Raises UsageError or CorruptState,
        before anything moves, for a fault that the snapshot brings up.
        """
        started = perf_counter_ns()
        results = {band.spec.name: NOTHING for band in bands}
        holed = [band for band in bands if band.holes.count]
        if not holed:
            return results
        self._counters.flush_calls += 1
        plans = self._plan(holed, move_limit)
        moved = self._move(holed, plans)
        for band, plan in zip(holed, plans, strict=True):
            results[band.spec.name] = self._commit(band, plan)
        if moved:
            self._counters.flushes_with_moves += 1
            self._counters.layout_version += 1
        self._run_movers(moved)
        self._counters.flush_host_ns += perf_counter_ns() - started
        return results

    def _run_movers(self, batches: Sequence[Batch]) -> None:
        """Run every pool's own copy; if one raises, the others still run, and the arena stops."""
        failed: Exception | None = None
        for band, sources, targets in batches:
            if band.spec.mover is None:
                continue
            try:
                band.spec.mover(self._backend.tensor(sources), self._backend.tensor(targets))
            except Exception as error:
                self._record.stop([f"pool {band.spec.name!r}: its mover raised {error!r}"])
                failed = failed or error
        if failed is not None:
            raise failed

    def check_record(self) -> None:
        """Read the device record back and raise what it holds."""
        words = self._reader.read(()).record
        raise_faults(words, self._record, self._backend, self.bands)

    def _plan(self, bands: Sequence[Band], move_limit: MoveLimit) -> list[MovePlan]:
        snapshot = self._reader.read(bands)
        raise_faults(snapshot.record, self._record, self._backend, self.bands)
        plans = []
        for band, pages in zip(bands, snapshot.holes, strict=True):
            try:
                holes = sorted_depths(band, pages)
            except ValueError as finding:
                raise self._record.stop([str(finding)]) from None
            plans.append(plan_moves(holes, band.span, move_limit(band, holes)))
        return plans

    def _move(self, bands: Sequence[Band], plans: Sequence[MovePlan]) -> list[Batch]:
        """One upload, then the move batches in stream order."""
        words = self._stage(bands, plans)
        uploaded: Operand = self._backend.upload(self._upload, words) if words else None
        batches = []
        start = 0
        for band, plan in zip(bands, plans, strict=True):
            moves, remaining = plan.sources.size, plan.remaining.size
            if moves:
                sources = uploaded[start : start + moves]
                targets = uploaded[start + moves : start + 2 * moves]
                self._move_batch(band, sources, targets)
                batches.append((band, sources, targets))
            start += 2 * moves
            if remaining:
                self._backend.assign(
                    band.holes.buffer[:remaining], uploaded[start : start + remaining]
                )
            start += remaining
        return batches

    def _stage(self, bands: Sequence[Band], plans: Sequence[MovePlan]) -> int:
        """Write sources, targets and remaining holes of every band as pages; returns the words."""
        host = self._upload.host
        end = 0
        for band, plan in zip(bands, plans, strict=True):
            if self._debug:
                check_disjoint(band, plan.sources, plan.targets)
            for depths in (plan.sources, plan.targets, plan.remaining):
                start, end = end, end + depths.size
                if start != end:
                    band.geometry.write_pages(depths, host[start:end])
        return end

    def _move_batch(self, band: Band, sources: Operand, targets: Operand) -> None:
        backend, table, record = self._backend, band.table, self._record.words
        backend.gather_virtual(
            table.v2p, table.p2v, sources, targets, self._virtual_ids, record,
            self._record.next_call_tag(band.index),
        )  # fmt: skip
        batch = (table.v2p, table.p2v, sources, targets, self._virtual_ids, record)
        if band.spec.mover is None:
            backend.move_pages(self._buffer, band.spec.page_bytes, *batch)
        else:
            backend.rebind(*batch)

    def _commit(self, band: Band, plan: MovePlan) -> FlushResult:
        """The host state follows what is now on the stream."""
        band.packed(plan)
        moves = plan.sources.size
        result = FlushResult(
            moves,
            moves * band.spec.page_bytes,
            plan.absorbed,
            0,
            "budget" if plan.remaining.size else "",
        )
        self._counters.moves += moves
        self._counters.bytes_moved += result.bytes_moved
        self._counters.absorbed += plan.absorbed
        return result

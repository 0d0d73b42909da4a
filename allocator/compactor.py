"""flush = snapshot -> plan -> move batch -> commit."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter_ns

import numpy as np
import torch

from kvdefrag.kernels.backend import Backend, Operand

from .band import Band
from .capacity import Capacity
from .debug import check_disjoint
from .faults import FaultRecord
from .hazards import Forward, Hazards, Pending, distinct_fences
from .limits import FlushResult, MoveLimit, Sight, plan_within
from .plan import MovePlan
from .rebuild import raise_faults
from .snapshot import SnapshotReader
from .stats import Counters
from .survey import Survey, survey, take_over, unread_sets

Batch = tuple[Band, Operand, Operand]
"""A band that moves pages, and their sources and targets on the device."""

NOTHING = FlushResult()
_NO_PENDING: list[Pending] = []


class Compactor:
    """Runs flushes over bands of one arena, with buffers made up front."""

    __slots__ = (
        "_backend", "_buffer", "_capacity", "_counters", "_debug", "_hazards", "_reader", "_record",
        "_upload",
        "_virtual_ids", "bands",
    )  # fmt: skip

    def __init__(
        self,
        backend: Backend,
        record: FaultRecord,
        bands: Sequence[Band],
        buffer: torch.Tensor | None,
        capacity: Capacity,
        hazards: Hazards,
        counters: Counters,
        device: torch.device,
        debug: bool,
    ) -> None:
        self._backend = backend
        self._record = record
        self.bands = bands
        self._buffer: Operand = None if buffer is None else backend.operand(buffer)
        self._capacity = capacity
        self._hazards = hazards
        self._counters = counters
        self._debug = debug
        page_counts = [band.geometry.num_pages for band in bands]
        self._reader = SnapshotReader(backend, record, sum(page_counts))
        self._upload = backend.staging(2 * sum(page_counts))
        self._virtual_ids = backend.operand(
            torch.empty(max(page_counts), dtype=torch.int64, device=device)
        )

    def flush(self, bands: Sequence[Band], limit: MoveLimit) -> dict[str, FlushResult]:
        """Compact ``bands``, each within ``limit``; results by pool name.

        One device-to-host copy, at most one host-to-device copy; none with nothing to do. Raises
        UsageError or CorruptState, before anything moves, for a fault that the snapshot brings up.
        """
        started = perf_counter_ns()
        ready, busy, results = [], [], {}
        for band in bands:
            result, ended = NOTHING, _NO_PENDING
            if band.hazards.pending:
                result = FlushResult(pending=band.hazards.pending_pages)
                ended = _ready(band, limit.urgent)
            results[band.spec.name] = result
            if ended or band.holes.count or limit.shifts:
                busy.append((band, ended))
                ready += ended
        if not busy:
            return results
        self._counters.flush_calls += 1
        for band, _ in busy:
            if band.geometry.floats:
                band.geometry.face(band.span, self._capacity.packs_low(band))
        # An urgent flush keeps out of no forward's way: the stream waits for them, after the
        # snapshot, so that the host does not.
        forwards = () if limit.urgent else self._hazards.outstanding()
        surveys, plans = self._plan(busy, forwards, limit)
        if (
            limit.urgent
            and (ready or self._hazards.forwards_in_flight)
            and (ready or any(plan.sources.size or plan.absorbed for plan in plans))
        ):
            # For pending pages of other pools too, so that nobody waits for a fence twice.
            self._hazards.wait(each for band in self.bands for each in band.hazards.pending)
        moved = self._move([band for band, _ in busy], plans)
        fences = distinct_fences(forwards)
        sources = {band.index: pages for band, pages, _ in moved} if fences else {}
        for (band, ended), seen, plan in zip(busy, surveys, plans, strict=True):
            band.packed(plan, ended, sources.get(band.index), fences)
            results[band.spec.name] = self._count(band, seen, plan)
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
        """Read the device record back and raise what it holds, and leases of unknown ids."""
        unread = [unread_sets(band, ()) for band in self.bands]
        sets = [page_set for page_sets in unread for page_set in page_sets]
        record, found = self._reader.read(
            [each.pages for each in sets], [each.count for each in sets]
        )
        raise_faults(record, self._record, self._backend, self.bands)
        words = iter(found)
        for band, page_sets in zip(self.bands, unread, strict=True):
            take_over(band, page_sets, words)

    def _plan(
        self,
        busy: Sequence[tuple[Band, list[Pending]]],
        forwards: Sequence[Forward],
        limit: MoveLimit,
    ) -> tuple[list[Survey], list[MovePlan]]:
        """Take the snapshot and plan every band; ``forwards``: those to keep out of the way of."""
        unread = [unread_sets(band, forwards) for band, _ in busy]
        parts, counts = [], []
        for (band, _), page_sets in zip(busy, unread, strict=True):
            holes = band.holes
            parts.append(holes.buffer[holes.head : holes.end])
            counts.append(holes.count)
            for page_set in page_sets:
                parts.append(page_set.pages)
                counts.append(page_set.count)
        record, found = self._reader.read(parts, counts)
        raise_faults(record, self._record, self._backend, self.bands)
        words = iter(found)
        surveys, plans = [], []
        for (band, ended), page_sets in zip(busy, unread, strict=True):
            pages = next(words)
            if page_sets:
                take_over(band, page_sets, words)
            try:
                seen = survey(band, pages, ended, forwards)
            except ValueError as finding:
                raise self._record.stop([str(finding)]) from None
            sight = Sight(seen.holes, seen.kept, seen.stop_depth, bool(forwards))
            blocked = self._hazards.blocked
            plan = plan_within(band, sight, 0) if blocked else limit.plan(band, sight)
            if seen.passed_over.size:
                # Neither filled nor absorbed, they are still holes for the next allocation.
                remaining = np.sort(np.concatenate((plan.remaining, seen.passed_over)))
                plan = plan._replace(remaining=remaining)
            surveys.append(seen)
            plans.append(plan)
        return surveys, plans

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
            self._record.next_call_tag(band.index, "move", sources.shape[0]),
        )  # fmt: skip
        batch = (table.v2p, table.p2v, sources, targets, self._virtual_ids, record)
        if band.spec.mover is None:
            backend.move_pages(self._buffer, band.spec.page_bytes, *batch)
        else:
            backend.rebind(*batch)

    def _count(self, band: Band, seen: Survey, plan: MovePlan) -> FlushResult:
        moves = plan.sources.size
        result = FlushResult(
            moves,
            moves * band.spec.page_bytes,
            plan.absorbed,
            band.hazards.pending_pages,
            _why_stopped(seen, plan, self._hazards.blocked),
        )
        self._counters.moves += moves
        self._counters.bytes_moved += result.bytes_moved
        self._counters.absorbed += plan.absorbed
        return result


def _ready(band: Band, urgent: bool) -> list[Pending]:
    """The pending pages that this flush may use: those whose fences it need not or may wait for."""
    return band.hazards.waiting() if urgent else band.hazards.ready()


def _why_stopped(seen: Survey, plan: MovePlan, blocked: bool) -> str:
    if plan.cut_by:
        if blocked:
            return "blocked"
        return seen.stop_reason if plan.cut_by == "stop" else "budget"
    return "forward" if seen.passed_over.size else ""

"""Copy bandwidth by page size, and how it depends on the tile: L2 cold, ids shuffled."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import chain, product

import torch

from kvdefrag.kernels.copy import (
    CHUNK_WORDS,
    CHUNKED_FROM_BYTES,
    FLAT_UNITS,
    Rebinding,
    copy_pages,
)
from kvdefrag.kernels.record import RECORD_WORDS

from .gpu_check_clock import Clock
from .gpu_check_kernels import copy_chunked, copy_flat, copy_plain
from .gpu_check_machine import free_bytes
from .gpu_check_report import Case, Report
from .gpu_check_sizes import MIB, Sizes

GROUP = "copy bandwidth"
SWEEP = "tile sweep"
OURS, FUSED, PLAIN, DEVICE_COPY = (
    "kvdefrag", "kvdefrag with rebind", "straightforward kernel", "device copy",
)  # fmt: skip
SHARE = "% of device copy"

GARBAGE = 0x5A5A5A5A5A5A5A5A

Copy = Callable[[torch.Tensor, torch.Tensor], None]
"""Copies pages of one size: sources, targets."""

TARGETS = ((16384, None, 97.0), (4096, 4096, 90.0), (512, 512, 70.0))
"""Page bytes from and to, and the share of the device copy wanted."""


class WorkingSet:
    """A buffer many times the L2, cut into batches of moves that touch every page once at most."""

    def __init__(self, buffer: torch.Tensor, page_bytes: int, moved_bytes: int) -> None:
        self.buffer = buffer
        self.page_bytes = page_bytes
        self.num_pages = buffer.numel() // page_bytes
        self.moves = moved_bytes // page_bytes
        self.moved_bytes = self.moves * page_bytes
        words = buffer.view(torch.int64)
        self.pages = words[: self.num_pages * (page_bytes // 8)].view(self.num_pages, -1)
        generator = torch.Generator(buffer.device).manual_seed(page_bytes)
        shuffled = torch.randperm(self.num_pages - 1, device=buffer.device, generator=generator) + 1
        count = (self.num_pages - 1) // (2 * self.moves)
        ids = shuffled[: 2 * count * self.moves].view(count, 2, self.moves)
        self.batches = [(pair[0], pair[1]) for pair in ids]

    def is_copied_by(self, copy: Copy) -> bool:
        """Whether ``copy`` brings the first batch to its targets, and changes nothing else."""
        self.buffer.view(torch.int64).random_()
        sources, targets = self.batches[0]
        self.pages.index_fill_(0, targets, GARBAGE)
        wanted = self.buffer.clone()
        pages = wanted.view(torch.int64)[: self.pages.numel()].view_as(self.pages)
        pages.index_copy_(0, targets, self.pages.index_select(0, sources))
        copy(sources, targets)
        return torch.equal(self.buffer.view(torch.int64), wanted.view(torch.int64))

    def device_copy(self, number: int) -> None:
        """As many bytes in one piece, from place to place inside the buffer."""
        start = (number % len(self.batches)) * 2 * self.moved_bytes
        middle, end = start + self.moved_bytes, start + 2 * self.moved_bytes
        self.buffer[middle:end].copy_(self.buffer[start:middle])


def measure_bandwidth(device: torch.device, sizes: Sizes, clock: Clock, report: Report) -> None:
    """Every page size, each beside a device copy of the same bytes in the same rounds."""
    buffer = _working_buffer(device, sizes)
    for page_bytes in sizes.timed_page_bytes:
        name = f"{GROUP}: {page_bytes}-byte pages"
        if report.time_for(name, 8):
            with report.measurement(name):
                _measure_page_size(buffer, page_bytes, sizes, clock, report)


def measure_sweep(device: torch.device, sizes: Sizes, clock: Clock, report: Report) -> None:
    """Both forms with other tiles and numbers of warps."""
    buffer = _working_buffer(device, sizes)
    record = torch.zeros(RECORD_WORDS, dtype=torch.int64, device=device)
    forms = (
        ("chunked", copy_chunked, sizes.chunked_sweep, sizes.chunk_words, CHUNK_WORDS),
        ("flat", copy_flat, sizes.flat_sweep, sizes.flat_units, FLAT_UNITS),
    )
    for form, launcher, all_page_bytes, tiles, default in forms:
        for page_bytes in all_page_bytes:
            name = f"{SWEEP}: {form} form, {page_bytes}-byte pages"
            if not report.time_for(name, 12):
                continue
            is_used = (page_bytes >= CHUNKED_FROM_BYTES) == (form == "chunked")
            with report.measurement(name):
                moves = WorkingSet(buffer, page_bytes, sizes.moved_bytes)
                for tile, warps in product(tiles, sizes.warps):
                    case = {"page_bytes": page_bytes, "form": form, "tile": tile, "warps": warps}
                    case["in_use"] = is_used and (tile, warps) == (default, 4)
                    copy = _with_tile(launcher, moves, record, tile, warps)
                    with report.measurement(f"{name}, tile {tile}, {warps} warps"):
                        _measure_tile(moves, copy, case, sizes.repetitions, clock, report)


def set_targets(report: Report) -> None:
    """Hold the shares that were measured against what they should be."""
    for figure in [f for f in report.figures if f["group"] == GROUP and f["unit"] == SHARE]:
        page_bytes = figure["case"]["page_bytes"]
        for low, high, wanted in TARGETS:
            if figure["what"] == OURS and low <= page_bytes and (not high or page_bytes <= high):
                name = f"copy of {page_bytes}-byte pages"
                report.target(name, wanted, figure["value"], SHARE, at_least=True)


def _working_buffer(device: torch.device, sizes: Sizes) -> torch.Tensor:
    """As much of ``buffer_bytes`` as leaves room for the copies that verify."""
    byte_count = min(sizes.buffer_bytes, free_bytes(device) // 4)
    step = MIB if byte_count > MIB else 8
    return torch.empty(byte_count // step * step, dtype=torch.uint8, device=device)


def _measure_page_size(
    buffer: torch.Tensor, page_bytes: int, sizes: Sizes, clock: Clock, report: Report
) -> None:
    moves = WorkingSet(buffer, page_bytes, sizes.moved_bytes)
    record = torch.zeros(RECORD_WORDS, dtype=torch.int64, device=buffer.device)
    tables = torch.full((2, moves.num_pages), -1, dtype=torch.int64, device=buffer.device)

    def ours(sources: torch.Tensor, targets: torch.Tensor) -> None:
        copy_pages(buffer, sources, targets, page_bytes, record)

    def fused(sources: torch.Tensor, targets: torch.Tensor) -> None:
        # Any distinct ids will do; the kernel reads no table.
        rebinding = Rebinding(tables[0], tables[1], sources)
        copy_pages(buffer, sources, targets, page_bytes, record, rebinding)

    def plain(sources: torch.Tensor, targets: torch.Tensor) -> None:
        copy_plain(buffer, sources, targets, page_bytes)

    case = {"page_bytes": page_bytes, "moves": moves.moves, "bytes": moves.moved_bytes}
    copies: dict[str, Copy] = {}
    for what, copy in ((OURS, ours), (FUSED, fused), (PLAIN, plain)):
        with report.measurement(f"{GROUP}: {what} {case}"):
            # Twice, since the second launch goes another way: through the kept handle.
            if moves.is_copied_by(copy) and moves.is_copied_by(copy):
                copies[what] = copy
            else:
                report.unverified(GROUP, case, what, "GB/s", "wrong bytes")
    if FUSED in copies and not _is_rebound(tables, *moves.batches[0]):
        report.unverified(GROUP, case, FUSED, "GB/s", "wrong tables")
        del copies[FUSED]
    _time_together(moves, copies, case, sizes.repetitions, clock, report)


def _is_rebound(tables: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor) -> bool:
    v2p, p2v = tables
    wanted = torch.full_like(tables, -1)
    wanted[0, sources] = targets
    wanted[1, targets] = sources
    return torch.equal(v2p, wanted[0]) and torch.equal(p2v, wanted[1])


def _time_together(
    moves: WorkingSet,
    copies: dict[str, Copy],
    case: Case,
    repetitions: int,
    clock: Clock,
    report: Report,
) -> None:
    """Rounds of all copies by turns, every time on pages that have long left the L2."""
    batches = moves.batches
    rounds = []
    for number in range(repetitions + 2):
        batch = batches[number % len(batches)]
        turn = {DEVICE_COPY: partial(moves.device_copy, number)}
        turn.update((what, partial(copy, *batch)) for what, copy in copies.items())
        rounds.append(turn)
    times = clock.device_us(list(chain.from_iterable(turn.values() for turn in rounds)))
    names = [DEVICE_COPY, *copies]
    per_copy = {name: times[i :: len(names)][2:] for i, name in enumerate(names)}
    for name, samples in per_copy.items():
        rates = [2e-3 * moves.moved_bytes / us for us in samples]
        report.figure(GROUP, case, name, "GB/s", rates)
        if name != DEVICE_COPY:
            paired = zip(per_copy[DEVICE_COPY], samples, strict=True)
            shares = [100 * reference / us for reference, us in paired]
            report.figure(GROUP, case, name, SHARE, shares)


def _with_tile(
    launcher: Callable[..., None],
    moves: WorkingSet,
    record: torch.Tensor,
    tile: int,
    warps: int,
) -> Copy:
    def copy(sources: torch.Tensor, targets: torch.Tensor) -> None:
        launcher(moves.buffer, sources, targets, moves.page_bytes, record, tile, warps)

    return copy


def _measure_tile(
    moves: WorkingSet, copy: Copy, case: Case, repetitions: int, clock: Clock, report: Report
) -> None:
    if not moves.is_copied_by(copy):
        report.unverified(SWEEP, case, OURS, "GB/s", "wrong bytes")
        return
    batches = moves.batches
    runs = [partial(copy, *batches[i % len(batches)]) for i in range(repetitions + 2)]
    times = clock.device_us(runs)[2:]
    report.figure(SWEEP, case, OURS, "GB/s", [2e-3 * moves.moved_bytes / us for us in times])

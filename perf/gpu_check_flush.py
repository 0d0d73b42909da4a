"""A whole urgent flush, host to host, beside the copy alone and beside two baselines."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch

from kvdefrag import Arena, PoolSpec
from kvdefrag.kernels.copy import copy_pages
from kvdefrag.kernels.record import RECORD_WORDS

from .gpu_check_baselines import batched_look_up, copying_page_by_page
from .gpu_check_clock import Clock
from .gpu_check_machine import free_bytes
from .gpu_check_report import Case, Report
from .gpu_check_sizes import GIB, KIB, Sizes

GROUP = "urgent flush"
OURS, BY_PAGE, BATCHED = "kvdefrag", "page by page", "batched look-up"
COPY_ALONE, COPY_HOST_TO_HOST = "copy alone, device time", "copy alone, host to host"

TARGET_MOVES, TARGET_PAGE_BYTES, TARGET_US = 4096, 64 * KIB, 150.0

CHUNK_WORDS = 1 << 24
"""Words compared at a time."""

MIX_ID, MIX_WORD = 0x5851F42D4C957F2D, 0x2545F4914F6CDD1D


class Packable(Protocol):
    """A pool that a flush is measured on; its ids and pages both start at 1."""

    virtual_to_physical: torch.Tensor

    def alloc(self, page_count: int) -> torch.Tensor:
        """int64 virtual ids [page_count]."""

    def free(self, virtual_ids: torch.Tensor) -> None:
        """Take ids back."""

    def flush(self) -> int:
        """Pack fully; returns the number of moved pages."""


class Ours:
    """One pool of an arena over ``pages``, int64 [num_pages, words]."""

    def __init__(self, pages: torch.Tensor, backend: str = "triton") -> None:
        buffer = pages.view(-1).view(torch.uint8)
        spec = PoolSpec("pages", page_bytes=8 * pages.shape[1])
        self.arena = Arena(buffer.numel(), [spec], buffer=buffer, backend=backend)
        self.pool = self.arena["pages"]
        self.virtual_to_physical = self.pool.virtual_to_physical
        self.alloc = self.pool.alloc
        self.free = self.pool.free

    def flush(self) -> int:
        """Pack fully; returns the number of moved pages."""
        return self.pool.flush(urgent=True).moves


class Scene:
    """``moves`` pages to move in a band of four times as many pages, half of them free.

    Holes are spread evenly over both halves of the band, so that the packed half has as many as
    there are live pages beyond it.
    """

    def __init__(self, pages: torch.Tensor, moves: int, clock: Clock) -> None:
        self.pages = pages[: 4 * moves + 1]
        self.moves = moves
        self.clock = clock
        device = pages.device
        generator = torch.Generator(device).manual_seed(moves)

        def half(first: int) -> torch.Tensor:
            return torch.randperm(2 * moves, device=device, generator=generator) + first

        low, high = half(1), half(2 * moves + 1)
        mixed = torch.randperm(2 * moves, device=device, generator=generator)
        self.freed = torch.cat([low[:moves], high[:moves]])[mixed]
        self.live = torch.cat([low[moves:], high[moves:]])

    def prepare(self, pool: Packable) -> None:
        """Bring a new pool to where its flush starts; every page holds its owner's mark."""
        ids = pool.alloc(4 * self.moves)
        assert torch.equal(ids, torch.arange(1, 4 * self.moves + 1, device=ids.device))
        for part in self._parts(ids):
            self.pages[part] = self._marks(part)
        pool.free(self.freed)
        self.clock.evict()

    def finding(self, pool: Packable, moved: int) -> str:
        """What is wrong with a pool after its flush; "" if every byte is where it must be."""
        if moved != self.moves:
            return f"{moved} pages moved, not {self.moves}"
        places = pool.virtual_to_physical[self.live]
        packed = torch.arange(1, 2 * self.moves + 1, device=places.device)
        if not torch.equal(places.sort().values, packed):
            return "the live pages are not packed"
        for part in self._parts(self.live):
            if not torch.equal(self.pages[pool.virtual_to_physical[part]], self._marks(part)):
                return "a page does not hold its owner's mark"
        return ""

    def _parts(self, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.split(ids, max(1, CHUNK_WORDS // self.pages.shape[1]))

    def _marks(self, ids: torch.Tensor) -> torch.Tensor:
        """int64 [ids, words], every word another one."""
        words = torch.arange(self.pages.shape[1], device=ids.device)
        return (ids * MIX_ID)[:, None] ^ (words * MIX_WORD + 1)


def measure_flush(device: torch.device, sizes: Sizes, clock: Clock, report: Report) -> None:
    """Every number of moves, kvdefrag and both baselines by turns."""
    page_bytes = sizes.flush_page_bytes
    for moves, (our_rounds, their_rounds) in sizes.flush_rounds.items():
        name = f"{GROUP}: {moves} moves of {page_bytes} bytes"
        needed = (4 * moves + 1) * page_bytes
        if free_bytes(device) < needed + 2 * GIB:
            report.skip(name, f"the pool alone takes {needed} bytes of device memory")
            continue
        if not report.time_for(name, 5 + moves / 1500):
            continue
        with report.measurement(name):
            words = torch.empty((4 * moves + 1, page_bytes // 8), dtype=torch.int64, device=device)
            scene = Scene(words, moves, clock)
            case = {"moves": moves, "page_bytes": page_bytes}
            _measure_packing(scene, case, our_rounds, their_rounds, report)
            _measure_copy_alone(scene, case, our_rounds, report)
            _set_target(case, report)
            del words, scene


def _measure_packing(
    scene: Scene, case: Case, our_rounds: int, their_rounds: int, report: Report
) -> None:
    ours = Ours(scene.pages)
    ours.arena.prewarm()

    def cleared() -> Ours:
        ours.arena.clear()
        return ours

    makers: dict[str, tuple[int, Callable[[], Packable]]] = {
        OURS: (our_rounds, cleared),
        BY_PAGE: (their_rounds, partial(copying_page_by_page, scene.pages)),
        BATCHED: (our_rounds, partial(batched_look_up, scene.pages)),
    }
    samples: dict[str, list[float]] = {what: [] for what in makers}
    wrong: dict[str, str] = {}
    # The first round loads what is loaded on first use, and is not kept where there are others.
    for number in range(max(our_rounds, their_rounds) + 1):
        for what, (rounds, make) in makers.items():
            if number > rounds or what in wrong or (rounds == 1 and number == 0):
                continue
            taken, finding = _one_flush(scene, make())
            if finding:
                wrong[what] = finding
            elif number:
                samples[what].append(taken)
    for what, times in samples.items():
        if what in wrong:
            report.unverified(GROUP, case, what, "us", wrong[what])
        elif times:
            report.figure(GROUP, case, what, "us", times)


def _one_flush(scene: Scene, pool: Packable) -> tuple[float, str]:
    """Microseconds host to host, and what is wrong."""
    scene.prepare(pool)
    moved: list[int] = []
    taken = scene.clock.host_us(lambda: moved.append(pool.flush()))
    return taken, scene.finding(pool, moved[0])


def _measure_copy_alone(scene: Scene, case: Case, rounds: int, report: Report) -> None:
    """The pairs that a flush moves, copied by the same kernel with nothing around it."""
    ours = Ours(scene.pages)
    scene.prepare(ours)
    before = ours.virtual_to_physical[scene.live]
    ours.flush()
    after = ours.virtual_to_physical[scene.live]
    moved = before != after
    sources, order = before[moved].sort(descending=True)
    targets = after[moved][order]
    buffer = scene.pages.view(-1).view(torch.uint8)
    record = torch.zeros(RECORD_WORDS, dtype=torch.int64, device=buffer.device)
    scene.pages[targets[:1]] = 0

    def copy() -> None:
        copy_pages(buffer, sources, targets, case["page_bytes"], record)

    device_us = scene.clock.device_us([copy] * (rounds + 2), evict=True)[2:]
    host_us = []
    for _ in range(rounds):
        scene.clock.evict()
        host_us.append(scene.clock.host_us(copy))
    finding = scene.finding(ours, sources.numel())
    for what, samples in ((COPY_ALONE, device_us), (COPY_HOST_TO_HOST, host_us)):
        if finding:
            report.unverified(GROUP, case, what, "us", finding)
        else:
            report.figure(GROUP, case, what, "us", samples)


def _set_target(case: Case, report: Report) -> None:
    if case != {"moves": TARGET_MOVES, "page_bytes": TARGET_PAGE_BYTES}:
        return
    flush, copy = (report.value(GROUP, case, what) for what in (OURS, COPY_ALONE))
    if flush is not None and copy is not None:
        name = f"flush of {TARGET_MOVES} pages of 64 KiB, beyond the copy alone"
        report.target(name, TARGET_US, flush - copy, "us", at_least=False)

"""Host time of free, flush and alloc beside a page-by-page baseline, and of the plan alone.

A quarter of the pages is freed at random, the pool is packed, and half of what was freed is
allocated again: CPU tensors, one core, page copy left out. Rounds of the two alternate. Run with
``make bench``; the last lines are the table of the README. Every result is checked before its time
is reported.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from rich.table import Table

from kvdefrag import Arena, PoolSpec
from kvdefrag.allocator.plan import plan_moves
from kvdefrag.perf.baselines import PageByPagePool

HOLES = (1, 16, 256, 4_096, 65_536)
OPS = ("free", "flush", "alloc")
ROUNDS = {1: 301, 16: 301, 256: 101, 4_096: 31, 65_536: 9}

SGLANG_US = {
    1: (32, 46, 28),
    16: (32, 57, 26),
    256: (34, 154, 29),
    4_096: (77, 1_779, 45),
    65_536: (2_517, 26_600, 266),
}
"""Median microseconds of free, flush and alloc in SGLang 0.5.23, measured on another day."""

rows: dict[tuple[int, str], tuple[float, float]] = {}
"""Median microseconds of ours and of the baseline, by holes and operation."""


class Ours:
    """kvdefrag on the host backend; the mover leaves the copy out."""

    def __init__(self, num_pages: int) -> None:
        spec = PoolSpec("pool", page_bytes=64, mover=lambda sources, targets: None)
        self.arena = Arena(num_pages * 64, [spec], device="cpu")
        self.alloc = self.arena["pool"].alloc
        self.free = self.arena["pool"].free

    def flush(self) -> int:
        return self.arena["pool"].flush(urgent=True).moves

    def check(self) -> None:
        self.arena.check(deep=True)


class Baseline(PageByPagePool):
    """The baseline with a check of its tables."""

    def check(self) -> None:
        ids = (self.virtual_to_physical >= 0).nonzero().flatten()
        assert torch.equal(self.physical_to_virtual[self.virtual_to_physical[ids]], ids)
        assert self.frontier == 1 + len(ids) + len(self.holes)


class Cycle:
    """free, flush, alloc, and back to full: one pool of four times ``holes`` live pages."""

    def __init__(self, pool: Ours | Baseline, holes: int, live_pages: int) -> None:
        self.pool = pool
        self.holes = holes
        self.live_pages = live_pages
        self.live = pool.alloc(live_pages)
        self.generator = torch.Generator().manual_seed(holes)
        self.granted = self.live[:0]
        self.moves = 0

    def prepare(self, op: str) -> Callable[[], Any]:
        """Bring the pool to where ``op`` starts; returns the call to time."""
        self.pool.flush()
        missing = self.live_pages - len(self.live) - len(self.granted)
        everything = torch.cat([self.live, self.granted, self.pool.alloc(missing)])
        self.granted = self.live[:0]
        order = torch.randperm(self.live_pages, generator=self.generator)
        freed, self.live = everything[order[: self.holes]], everything[order[self.holes :]]
        if op == "free":
            return lambda: self.pool.free(freed)
        self.pool.free(freed)
        if op == "flush":
            return self.flush
        self.flush()
        return self.alloc

    def flush(self) -> None:
        self.moves = self.pool.flush()

    def alloc(self) -> None:
        self.granted = self.pool.alloc(max(1, self.holes // 2))


@pytest.fixture(autouse=True)
def one_core() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module", autouse=True)
def print_table(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    table = Table("holes", *(f"{op} us" for op in OPS), *(f"{op} x" for op in OPS), "x SGLang")
    for holes in HOLES:
        if all((holes, op) in rows for op in OPS):
            ours = [rows[holes, op] for op in OPS]
            against = zip(SGLANG_US[holes], ours, strict=True)
            table.add_row(
                f"{holes:,}",
                *(f"{mine:,.1f}" for mine, _ in ours),
                *(f"{theirs / mine:.1f}" for mine, theirs in ours),
                " / ".join(f"{theirs / mine:.1f}" for theirs, (mine, _) in against),
            )
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        print()
        Console(width=100).print(table)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("holes", HOLES)
def test_operation(benchmark: Any, holes: int, op: str) -> None:
    live_pages = max(64, 4 * holes)
    ours = Cycle(Ours(live_pages + 1), holes, live_pages)
    theirs = Cycle(Baseline(live_pages + 1), holes, live_pages)
    baseline_s = []

    def one_round_of_the_baseline() -> tuple[tuple[Callable[[], Any]], dict[str, Any]]:
        call = theirs.prepare(op)
        started = perf_counter()
        call()
        baseline_s.append(perf_counter() - started)
        return (ours.prepare(op),), {}

    rounds = ROUNDS[holes]
    benchmark.pedantic(
        lambda call: call(), setup=one_round_of_the_baseline, rounds=rounds, warmup_rounds=2
    )
    ours.pool.check()
    theirs.pool.check()
    assert ours.moves == theirs.moves
    if benchmark.stats is not None:
        rows[holes, op] = (benchmark.stats.stats.median * 1e6, statistics.median(baseline_s) * 1e6)
        benchmark.extra_info.update(
            holes=holes,
            pages_moved=ours.moves,
            baseline_median_us=rows[holes, op][1],
            backend="host",
        )


@pytest.mark.parametrize("holes", HOLES)
def test_plan_alone(benchmark: Any, holes: int) -> None:
    """Sorted holes in, MovePlan out."""
    span = max(64, 4 * holes)
    depths = np.sort(np.random.default_rng(holes).permutation(span)[:holes])
    plan = benchmark(plan_moves, depths, span)
    assert plan.span_after == span - holes
    assert len(plan.sources) == len(plan.targets) == (depths < span - holes).sum()

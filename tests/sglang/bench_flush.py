"""Host time of SGLang's flushes, as released and with the plugin, in alternating rounds.

A quarter of the pages is freed at random and the pool is flushed, page copy included (64 bytes a
page), on CPU tensors and one core. Run with ``make bench-sglang``; the last lines are the table of
the README. Both pools must be alike in the end before a time is reported.
"""

import statistics
from collections.abc import Iterator
from time import perf_counter

import pytest
import torch
from rich.console import Console
from rich.table import Table
from sglang.test.unified_allocator_fixtures import build_swa_pool

from .worlds import STOCK, WITH_PLUGIN, differences, running

HOLES = (1, 16, 256, 4_096, 65_536)
ROUNDS = {1: 301, 16: 301, 256: 201, 4_096: 41, 65_536: 11}
WARM_UP_ROUNDS = 2
PAGE_BYTES = 64

rows: dict[tuple[int, bool], tuple[float, float]] = {}
"""Median microseconds of SGLang and of the plugin, by holes and urgency."""


class Pool:
    """The full-attention pool of SGLang's two, with all of its live pages in one list."""

    def __init__(self, live_pages: int, methods: dict[str, object]) -> None:
        composite = build_swa_pool(total_bytes=(live_pages + 200) * PAGE_BYTES)
        self.allocator = composite.full_attn_allocator
        self.methods = methods
        self.live = self.allocator.alloc(live_pages)
        self.generator = torch.Generator().manual_seed(live_pages)
        self.times_us: list[float] = []

    def round(self, holes: int, urgent: bool) -> None:
        order = torch.randperm(len(self.live), generator=self.generator)
        freed, kept = self.live[order[:holes]], self.live[order[holes:]]
        self.allocator.free(freed)
        with running(self.methods):
            started = perf_counter()
            self.allocator._flush(urgent=urgent)
            self.times_us.append((perf_counter() - started) * 1e6)
        self.allocator.clear_inverse_history()
        self.live = torch.cat([kept, self.allocator.alloc(holes)])

    def median_us(self) -> float:
        return statistics.median(self.times_us[WARM_UP_ROUNDS:])


@pytest.fixture(scope="module", autouse=True)
def print_table(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    table = Table("holes", "urgent, us", "plugin", "x", "idle, us", "plugin", "x")
    for holes in HOLES:
        if all((holes, urgent) in rows for urgent in (True, False)):
            cells = []
            for urgent in (True, False):
                stock, plugin = rows[holes, urgent]
                cells += [f"{stock:,.0f}", f"{plugin:,.0f}", f"{stock / plugin:.1f}"]
            table.add_row(f"{holes:,}", *cells)
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        print()
        Console(width=100).print(table)


@pytest.mark.parametrize("holes", HOLES)
@pytest.mark.parametrize("urgent", [True, False], ids=["urgent", "idle"])
def test_flush(holes: int, urgent: bool) -> None:
    live_pages = max(64, 4 * holes)
    stock, plugin = Pool(live_pages, STOCK), Pool(live_pages, WITH_PLUGIN)
    for _ in range(WARM_UP_ROUNDS + ROUNDS[holes]):
        stock.round(holes, urgent)
        plugin.round(holes, urgent)
    for name in ("virtual_to_physical", "physical_to_virtual", "_free_phys_pages"):
        left, right = getattr(stock.allocator, name), getattr(plugin.allocator, name)
        assert differences(left, right, name) == []
    counters = "_stats_n_flush_moves"
    assert getattr(stock.allocator, counters) == getattr(plugin.allocator, counters) > 0
    rows[holes, urgent] = stock.median_us(), plugin.median_us()

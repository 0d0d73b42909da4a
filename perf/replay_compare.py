"""One trace through several allocators, side by side.

All rows of one pool size get the same requests in the same order. Host times are measured; what a
device-to-host read costs beyond them is a model, and has its own column.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from .arena_face import ArenaFace
from .baseline_arena import BaselineArena
from .baselines import POLICIES
from .geometries import PoolLayout
from .replay import (
    ReplayOptions,
    ReplayResult,
    make_arena,
    make_buffer,
    make_specs,
    replay_trace,
)
from .trace import Request

Report = dict[str, Any]

OURS = "kvdefrag"
STATIC = "static"


class Contender(NamedTuple):
    """An allocator and a pool; `split` is the share of the buffer that token pages have."""

    name: str
    pool_gib: float
    split: float | None

    @property
    def split_text(self) -> str | None:
        """Percent of the bytes for token pages and for states, or None where they share."""
        if self.split is None:
            return None
        return f"{100 * self.split:g}/{100 - 100 * self.split:g}"

    def make(self, layout: PoolLayout, options: ReplayOptions) -> ArenaFace:
        """An empty arena; `AllocatorError` where it refuses the layout."""
        if self.name == OURS:
            return make_arena(layout, options)
        buffer = make_buffer(layout, options.device)
        return BaselineArena(buffer, make_specs(layout), POLICIES[self.name], self.split)


def contenders(
    names: Sequence[str], layouts: dict[float, PoolLayout], splits: Sequence[float]
) -> Iterator[Contender]:
    """Ours and the baselines `names` for every pool size; static once a split, with two pools."""
    for pool_gib, layout in layouts.items():
        yield Contender(OURS, pool_gib, None)
        for name in names:
            if name == STATIC and layout.state_bytes:
                yield from (Contender(name, pool_gib, split) for split in splits)
            else:
                yield Contender(name, pool_gib, None)


def compare_replays(
    arenas: Sequence[Contender],
    layouts: dict[float, PoolLayout],
    requests: Sequence[Request],
    options: ReplayOptions,
    sync_us: float,
    on_done: Callable[[], None] = lambda: None,
) -> list[Report]:
    """One row a contender, in order; `on_done` runs once a request and contender."""
    rows = []
    for contender in arenas:
        layout = layouts[contender.pool_gib]
        arena = contender.make(layout, options)
        result = replay_trace(arena, layout, requests, options, on_done)
        rows.append(comparison_row(contender, result, sync_us))
    return rows


def comparison_row(contender: Contender, result: ReplayResult, sync_us: float) -> Report:
    """The figures of one contender; `device_to_host_copies` are those that serving took."""
    counters, stats, times = result.counters, result.stats, result.times
    host_ms = {
        name: sum(calls_ns) / 1e6
        for name, calls_ns in (
            ("alloc", times.alloc_ns),
            ("free", times.free_ns),
            ("flush", times.flush_ns),
        )
    }
    return {
        "contender": contender.name,
        "split": contender.split_text,
        "pool_gib": contender.pool_gib,
        "backend": result.backend if contender.name == OURS else "torch",
        "passed": result.passed,
        "pages_checked": result.verdict.pages_checked,
        "wrong_pages": result.verdict.wrong_pages,
        "faults": list(result.faults),
        "hit_rate": counters.hit_tokens / max(1, counters.prompt_tokens),
        "finished": counters.finished,
        "refused": counters.refused,
        "preemptions": counters.preemptions,
        "waited_requests": counters.waited,
        "evicted_pages": dict(counters.evicted_pages),
        "host_ms": {**host_ms, "total": sum(host_ms.values())},
        "flushes": stats.flush_calls,
        "moves": stats.moves,
        "bytes_moved": stats.bytes_moved,
        "device_to_host_copies": result.read_backs,
        "modelled_sync_ms": result.read_backs * sync_us / 1e3,
        "elapsed_s": result.elapsed_s,
    }


def print_comparison(report: Report, console: Console) -> None:
    """Print what the traffic got and what it cost, a table each for every pool size."""
    comparison, settings = report["comparison"], report["settings"]
    for pool_gib in dict.fromkeys(row["pool_gib"] for row in comparison):
        rows = [row for row in comparison if row["pool_gib"] == pool_gib]
        title = f"{settings['trace']}: {settings['requests']:,} requests, {pool_gib:g} GiB"
        console.print(_table(title, rows, _traffic_cells))
        cost = "host time of the allocator, and device-to-host reads"
        if settings["device_sync_us"]:
            cost += f"\nmodel ms: reads x {settings['device_sync_us']:g} us, not measured"
        cells = partial(_cost_cells, with_model=bool(settings["device_sync_us"]))
        console.print(_table(cost, rows, cells))
    for row in comparison:
        if not row["passed"]:
            console.print(
                f"FAILED: {_name(row)}: {row['wrong_pages']:,} wrong pages, {row['faults']}",
                style="bold red",
                markup=False,
            )


def _name(row: Report) -> str:
    return f"{row['contender']} {row['split']}" if row["split"] else str(row["contender"])


def _table(title: str, rows: list[Report], cells: Callable[[Report], dict[str, str]]) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE)
    table.add_column("", style="cyan", no_wrap=True)
    for heading in cells(rows[0]):
        table.add_column(heading.replace(" ", "\n"), justify="right", no_wrap=True)
    for row in rows:
        table.add_row(_name(row), *cells(row).values())
    return table


def _traffic_cells(row: Report) -> dict[str, str]:
    return {
        "hit rate": f"{row['hit_rate']:.2%}",
        "waited": f"{row['waited_requests']:,}",
        **{f"evicted {pool}": f"{pages:,}" for pool, pages in row["evicted_pages"].items()},
        "moved": f"{row['moves']:,}",
        "MB moved": f"{row['bytes_moved'] / 1e6:,.0f}",
    }


def _cost_cells(row: Report, with_model: bool) -> dict[str, str]:
    cells = {
        **{f"{part} ms": f"{ms:,.0f}" for part, ms in row["host_ms"].items()},
        "reads": f"{row['device_to_host_copies']:,}",
    }
    if with_model:
        cells["model ms"] = f"{row['modelled_sync_ms']:,.0f}"
    return cells

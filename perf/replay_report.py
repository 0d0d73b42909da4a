"""What a replay found, as a nested dict for JSON and as tables for a terminal.

Everything but `host_time`, `elapsed_s` and `peak_rss_bytes` depends only on the trace and the
options, not on timing.
"""

import resource
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from rich.console import Console, Group
from rich.table import Table

from kvdefrag import ArenaStats

from .replay import ReplayResult
from .replay_watch import Watch

Report = dict[str, Any]

_KIB = 1024


def build_report(settings: Report, result: ReplayResult, watch: Watch) -> Report:
    """Collect the figures of a replay of our arena; `settings` are put first.

    Launches and copies are those of the whole replay: the translations that stamping and comparing
    need are among the launches.
    """
    counters, verdict = result.counters, result.verdict
    assert isinstance(result.stats, ArenaStats)
    return {
        "settings": settings,
        "passed": result.passed,
        "requests": {
            "finished": counters.finished,
            "refused": counters.refused,
            "preemptions": counters.preemptions,
        },
        "tokens": {
            "prompt": counters.prompt_tokens,
            "hit": counters.hit_tokens,
            "hit_rate": counters.hit_tokens / max(1, counters.prompt_tokens),
            "generated": counters.generated_tokens,
            "decode_steps": counters.decode_steps,
        },
        "waited_requests": counters.waited,
        "evicted_chains": counters.evicted_chains,
        "evicted_pages": dict(counters.evicted_pages),
        **_allocator_figures(result.stats),
        "peak_window_pages": result.peak_window_pages,
        "byte_check": {
            "pages_checked": verdict.pages_checked,
            "wrong_pages": verdict.wrong_pages,
            "first_wrong": str(verdict.first_wrong) if verdict.first_wrong else None,
            "faults": list(result.faults),
        },
        "host_time": {
            "alloc": _time_summary(result.times.alloc_ns),
            "free": _time_summary(result.times.free_ns),
            "flush": _time_summary(result.times.flush_ns),
        },
        "elapsed_s": result.elapsed_s,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIB,
        "occupancy": watch.occupancy,
        "heat": watch.heat,
    }


def _allocator_figures(stats: ArenaStats) -> Report:
    return {
        "flushes": stats.flush_calls,
        "flushes_with_moves": stats.flushes_with_moves,
        "moves": stats.moves,
        "bytes_moved": stats.bytes_moved,
        "absorbed": stats.absorbed,
        "device_to_host_copies": stats.device_to_host_copies,
        "host_to_device_copies": stats.host_to_device_copies,
        "launches": stats.launches,
        "alloc_calls": stats.alloc_calls,
        "free_calls": stats.free_calls,
        "pools": {
            name: {
                "peak_hole_pages": pool.peak_hole_pages,
                "live_pages": pool.live_pages,
                "hole_pages": pool.hole_pages,
            }
            for name, pool in stats.pools.items()
        },
    }


def print_report(report: Report, console: Console) -> None:
    """Print the figures of `build_report` as tables."""
    console.print(Group(_figures_table(report), _time_table(report["host_time"])))
    check = report["byte_check"]
    style = "bold green" if report["passed"] else "bold red"
    console.print(verdict_text(report), style=style, highlight=False, markup=False)
    for line in (check["first_wrong"], *check["faults"]):
        if line:
            console.print(line, highlight=False, markup=False)


def verdict_text(report: Report) -> str:
    """Say in one line what the byte check found."""
    check = report["byte_check"]
    if check["wrong_pages"]:
        return f"WRONG BYTES in {check['wrong_pages']:,} of {check['pages_checked']:,} comparisons"
    if check["faults"]:
        return "INCONSISTENT: bytes are right, but the page counts or tables are not"
    if not check["pages_checked"]:
        return "No page was compared."
    return f"All bytes right in {check['pages_checked']:,} page comparisons."


def _time_summary(calls_ns: Sequence[int]) -> dict[str, float]:
    if not calls_ns:
        return {"calls": 0, "sum_ms": 0.0, "p50_us": 0.0, "p99_us": 0.0, "max_us": 0.0}
    times_us = np.array(calls_ns) / 1e3
    return {
        "calls": len(calls_ns),
        "sum_ms": float(times_us.sum() / 1e3),
        "p50_us": float(np.percentile(times_us, 50)),
        "p99_us": float(np.percentile(times_us, 99)),
        "max_us": float(times_us.max()),
    }


def _figures_table(report: Report) -> Table:
    settings = report["settings"]
    title = f"{settings['trace']}: {settings['requests']:,} requests, {settings['geometry']}"
    table = Table(title=title, show_header=False, title_justify="left")
    table.add_column(style="cyan")
    table.add_column(justify="right")
    for section in (_traffic_rows, _flush_rows):
        for name, value in section(report):
            table.add_row(name, value)
        table.add_section()
    return table


def _traffic_rows(report: Report) -> Iterator[tuple[str, str]]:
    settings, requests, tokens = report["settings"], report["requests"], report["tokens"]
    yield "backend, device", f"{settings['backend']}, {settings['device']}"
    yield "pages", f"{settings['num_pages']:,} of {settings['page_bytes']:,} bytes"
    if settings["state_bytes"]:
        yield "state slots", f"{settings['state_slots']:,} of {settings['state_bytes']:,} bytes"
    if settings["window_tokens"]:
        size = f"{settings['window_pages']:,} of {settings['window_page_bytes']:,} bytes"
        yield "window pages", size
        yield "window pages held at most", f"{report['peak_window_pages']:,}"
    yield "requests finished", f"{requests['finished']:,}"
    yield "requests refused", f"{requests['refused']:,}"
    yield "requests that waited for pages", f"{report['waited_requests']:,}"
    yield "preemptions", f"{requests['preemptions']:,}"
    yield "prompt tokens", f"{tokens['prompt']:,}"
    yield "hit rate", f"{tokens['hit_rate']:.1%}"
    yield "decode steps", f"{tokens['decode_steps']:,}"
    for pool, pages in report["evicted_pages"].items():
        yield f"evicted pages, {pool}", f"{pages:,}"
    yield "elapsed", f"{report['elapsed_s']:.1f} s"
    yield "peak memory", f"{report['peak_rss_bytes'] / 2**20:,.0f} MiB"


def _flush_rows(report: Report) -> Iterator[tuple[str, str]]:
    yield "flushes", f"{report['flushes']:,}"
    yield "flushes that moved pages", f"{report['flushes_with_moves']:,}"
    yield "pages moved", f"{report['moves']:,}"
    yield "bytes moved", f"{report['bytes_moved']:,}"
    yield "device-to-host copies", f"{report['device_to_host_copies']:,}"
    yield "host-to-device copies", f"{report['host_to_device_copies']:,}"
    yield "launches", f"{report['launches']:,}"
    for name, pool in report["pools"].items():
        yield f"peak holes, {name}", f"{pool['peak_hole_pages']:,}"
        yield f"live / holes at the end, {name}", f"{pool['live_pages']:,} / {pool['hole_pages']:,}"


def _time_table(host_time: Report) -> Table:
    table = Table("host time", title_justify="left")
    for heading in ("calls", "sum ms", "p50 us", "p99 us", "max us"):
        table.add_column(heading, justify="right")
    for name, times in host_time.items():
        table.add_row(
            name,
            f"{times['calls']:,}",
            *(f"{times[key]:,.1f}" for key in ("sum_ms", "p50_us", "p99_us", "max_us")),
        )
    return table

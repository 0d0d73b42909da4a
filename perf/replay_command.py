"""The command `replay`: options in, report and exit status out."""

import json
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click
import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kvdefrag import AllocatorError, __version__

from .geometries import DEFAULT_GEOMETRY, GEOMETRIES, Geometry, PoolLayout, plan_pools
from .replay import ReplayOptions, make_arena, make_specs, replay_trace
from .replay_compare import STATIC, compare_replays, contenders, print_comparison
from .replay_options import DEFAULT_SPLITS, replay_options
from .replay_report import build_report, print_report
from .replay_watch import Watch
from .trace import BLOCK_TOKENS, Request, TraceError, read_trace
from .trace_drift import drift
from .trace_generator import DEFAULT_REQUESTS, generate_trace

Report = dict[str, Any]
Made = TypeVar("Made")

GIB = 1 << 30


@click.command()
@replay_options
def replay(**options: Any) -> None:
    """Replay a request trace through a small model of a serving engine.

    A prefix cache and running requests hold pages; memory pressure evicts, evictions leave holes,
    and the allocator packs. Every page's bytes are compared with what was written. With --compare,
    the same requests go through kvdefrag and through other ways to keep the pages, side by side.
    Exit status: 0, 1 if a byte or a table was wrong, 2 for a bad option or trace.
    """
    json_path: Path | None = options["json_path"]
    if json_path is not None and not json_path.parent.is_dir():
        raise click.BadParameter(
            f"directory {json_path.parent} does not exist.", param_hint="--json"
        )
    _check_combination(options)
    geometry = _geometry(options)
    if options["compare"] and geometry.window_tokens:
        raise click.UsageError(
            f"--compare: {geometry.name} has a sliding window, whose pool shares ids with the full "
            "one; the other allocators have no shared ids."
        )
    layouts = {size: _layout(geometry, size, options) for size in options["pool_gib"]}
    requests = _requests(options)
    settings = _settings(options, geometry, len(requests))
    if options["compare"]:
        report, show = _compare(requests, layouts, options, settings), print_comparison
        passed = all(row["passed"] for row in report["comparison"])
    else:
        layout = next(iter(layouts.values()))
        report, show = _replay_one(requests, layout, options, settings), print_report
        passed = report["passed"]
    if json_path is not None:
        json_path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    show(report, Console())
    sys.exit(0 if passed else 1)


def _check_combination(options: dict[str, Any]) -> None:
    if options["compare"]:
        if options["splits"] and STATIC not in options["compare"]:
            raise click.UsageError("--split goes with --compare static.")
        return
    for option, name in (("splits", "--split"), ("device_sync_us", "--device-sync-us")):
        if options[option] is not None:
            raise click.UsageError(f"{name} goes with --compare.")
    if len(options["pool_gib"]) > 1:
        raise click.UsageError("--pool-gib: several sizes go with --compare.")


def _run_options(options: dict[str, Any], verify: str) -> ReplayOptions:
    return ReplayOptions(
        running=options["running"],
        seed=options["seed"],
        backend=options["backend"],
        device=options["device"] or ("cuda" if torch.cuda.is_available() else "cpu"),
        verify=options["verify"] or verify,
    )


def _replay_one(
    requests: list[Request], layout: PoolLayout, options: dict[str, Any], settings: Report
) -> Report:
    run_options = _run_options(options, verify="full")
    arena = _made(lambda: make_arena(layout, run_options))
    watch = Watch(arena, make_specs(layout), len(requests))
    with _progress(len(requests)) as advance:

        def on_done() -> None:
            watch.request_done()
            advance()

        # The tables show none of it, and looking on takes some percent of a replay.
        attached = watch if options["json_path"] else None
        result = replay_trace(arena, layout, requests, run_options, on_done, attached)
    settings = {
        **settings,
        "pool_gib": options["pool_gib"][0],
        "num_pages": layout.num_pages,
        "state_slots": layout.state_slots,
        "window_pages": layout.window_pages,
        "window_tokens": layout.window_tokens,
        "page_bytes": layout.page_bytes,
        "state_bytes": layout.state_bytes,
        "window_page_bytes": layout.window_page_bytes,
        "verify": run_options.verify,
        "backend": result.backend,
        "device": result.device,
    }
    return build_report(settings, result, watch)


def _compare(
    requests: list[Request],
    layouts: dict[float, PoolLayout],
    options: dict[str, Any],
    settings: Report,
) -> Report:
    run_options = _run_options(options, verify="sample")
    splits = [percent / 100 for percent in options["splits"] or DEFAULT_SPLITS]
    arenas = list(contenders(options["compare"], layouts, splits))
    for contender in arenas:
        _made(partial(contender.make, layouts[contender.pool_gib], run_options))
    sync_us = options["device_sync_us"] or 0.0
    with _progress(len(requests) * len(arenas)) as advance:
        rows = compare_replays(arenas, layouts, requests, run_options, sync_us, advance)
    settings = {
        **settings,
        "pool_gib": list(layouts),
        "verify": run_options.verify,
        "device": run_options.device,
        "device_sync_us": sync_us,
    }
    return {"comparison": rows, "settings": settings}


def _geometry(options: dict[str, Any]) -> Geometry:
    page_bytes: int | None = options["page_bytes"]
    if page_bytes is None:
        for name in ("page_size", "state_bytes", "window_page_bytes", "window_tokens"):
            if options[name] is not None:
                raise click.UsageError(
                    f"--{name.replace('_', '-')} goes with --page-bytes, not with a geometry."
                )
        return GEOMETRIES[options["geometry"] or DEFAULT_GEOMETRY]
    if options["geometry"] is not None:
        raise click.UsageError("--page-bytes takes the place of --geometry; give one of the two.")
    page_size = options["page_size"] or 16
    if BLOCK_TOKENS % page_size:
        raise click.BadParameter(
            f"{page_size} does not divide the {BLOCK_TOKENS} tokens of a block.",
            param_hint="--page-size",
        )
    window_page_bytes, window_tokens = options["window_page_bytes"], options["window_tokens"]
    if (window_page_bytes is None) != (window_tokens is None):
        raise click.UsageError("--window-page-bytes and --window-tokens go together.")
    return Geometry(
        "explicit sizes",
        page_bytes,
        page_size,
        options["state_bytes"] or 0,
        window_page_bytes or 0,
        window_tokens or 0,
    )


def _layout(geometry: Geometry, pool_gib: float, options: dict[str, Any]) -> PoolLayout:
    try:
        return plan_pools(geometry, int(pool_gib * GIB), options["page_scale"])
    except ValueError as error:
        raise click.UsageError(f"--pool-gib, --page-scale: {error}") from error


def _requests(options: dict[str, Any]) -> list[Request]:
    trace_path: Path | None = options["trace_path"]
    if trace_path is None:
        requests = generate_trace(options["limit"] or DEFAULT_REQUESTS, options["seed"])
    else:
        try:
            requests = read_trace(trace_path, options["limit"])
        except TraceError as error:
            raise click.BadParameter(str(error), param_hint="--trace") from error
    return drift(requests, options["drift"]) if options["drift"] else requests


def _made(make: Callable[[], Made]) -> Made:
    """An arena, or what is wrong with the options it was to be made from."""
    try:
        return make()
    except AllocatorError as error:
        raise click.UsageError(f"the allocator refused these options: {error}") from error
    except (MemoryError, RuntimeError) as error:
        raise click.UsageError(f"no memory for a pool of this size: {error}") from error


@contextmanager
def _progress(total: int) -> Iterator[Callable[[], None]]:
    """A progress bar, drawn on stderr if that is a terminal; gives the call that advances it."""
    console = Console(stderr=True)
    progress = Progress(
        TextColumn("replay"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with progress:
        task = progress.add_task("replay", total=total)
        try:
            yield lambda: progress.advance(task)
        except AllocatorError as error:
            raise click.ClickException(f"{type(error).__name__}: {error}") from error


def _settings(options: dict[str, Any], geometry: Geometry, request_count: int) -> Report:
    trace_path: Path | None = options["trace_path"]
    return {
        "trace": trace_path.name if trace_path else "generated trace",
        "requests": request_count,
        "drift": options["drift"],
        "geometry": geometry.name,
        "page_scale": str(options["page_scale"]),
        "page_size": geometry.page_size,
        "running": options["running"],
        "seed": options["seed"],
        "kvdefrag": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }

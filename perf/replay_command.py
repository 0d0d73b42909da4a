"""The command `replay`: options in, report and exit status out."""

import json
import platform
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kvdefrag import AllocatorError, __version__

from .geometries import DEFAULT_GEOMETRY, GEOMETRIES, Geometry, PoolLayout, plan_pools
from .replay import ReplayOptions, ReplayResult, make_arena, replay_trace
from .replay_report import build_report, print_report
from .trace import BLOCK_TOKENS, Request, TraceError, read_trace
from .trace_generator import DEFAULT_REQUESTS, generate_trace

GIB = 1 << 30
MAX_POOL_GIB = 1 << 20
MAX_RUNNING = 1 << 16


def parse_scale(_context: click.Context, _option: click.Parameter, value: str) -> Fraction:
    """Turn `1/1024`, `0.5` or `1024` into the factor by which sizes shrink, at most 1."""
    try:
        # Fraction would spell out the digits of a huge exponent; a float tells at once.
        scale = Fraction(value) if "/" in value else Fraction(float(value)).limit_denominator()
    except (ValueError, ZeroDivisionError, OverflowError):
        scale = Fraction(0)
    if scale <= 0:
        raise click.BadParameter(
            f"{value!r} is neither a fraction like 1/1024 nor a divisor like 1024."
        )
    return scale if scale <= 1 else 1 / scale


@click.command()
@click.option(
    "--trace",
    "trace_path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Requests in the Mooncake JSON-lines format. "
    f"Default: {DEFAULT_REQUESTS:,} generated requests of the same shape.",
)
@click.option(
    "--geometry",
    type=click.Choice(list(GEOMETRIES)),
    help=f"Model whose page and state sizes to use. Default: {DEFAULT_GEOMETRY}.",
)
@click.option(
    "--page-bytes",
    type=click.IntRange(min=1),
    help="Unscaled bytes of a page, in place of a geometry.",
)
@click.option(
    "--page-size",
    type=click.IntRange(min=1),
    help=f"Tokens of a page, a divisor of {BLOCK_TOKENS}, with --page-bytes. Default: 16.",
)
@click.option(
    "--state-bytes",
    type=click.IntRange(min=0),
    help="Unscaled bytes of a state slot, with --page-bytes. Default: 0, one pool without states.",
)
@click.option(
    "--pool-gib",
    type=click.FloatRange(min=0, min_open=True, max=MAX_POOL_GIB),
    default=100.0,
    show_default=True,
    help="Unscaled size of the shared pool in GiB.",
)
@click.option(
    "--page-scale",
    callback=parse_scale,
    metavar="SCALE",
    default="1/1024",
    show_default=True,
    help="Shrinks the bytes of pages and states, not their number: "
    "a fraction up to 1, or a divisor from 1 on (1024 means 1/1024).",
)
@click.option(
    "--running",
    type=click.IntRange(1, MAX_RUNNING),
    default=64,
    show_default=True,
    help="Requests that run at a time.",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**63 - 1),
    default=0,
    show_default=True,
    help="Of the generator, and of the sample of --verify sample.",
)
@click.option("--limit", type=click.IntRange(min=1), help="Replay only so many requests.")
@click.option(
    "--backend",
    type=click.Choice(["auto", "host", "triton"]),
    default="auto",
    show_default=True,
    help="Where the allocator runs its operations.",
)
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    help="Where the pool lives. Default: cuda where there is one, else cpu.",
)
@click.option(
    "--verify",
    type=click.Choice(["full", "sample", "off"]),
    default="full",
    show_default=True,
    help="Stamp and compare every page, 1 page in 16, or none.",
)
@click.option(
    "--json",
    "json_path",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Also write the figures to this file.",
)
def replay(**options: Any) -> None:
    """Replay a request trace through a small model of a serving engine.

    A prefix cache and running requests hold pages; memory pressure evicts, evictions leave holes,
    and the allocator packs. Every page's bytes are compared with what was written. Exit status: 0,
    1 if a byte or a table was wrong, 2 for a bad option or trace.
    """
    json_path: Path | None = options["json_path"]
    if json_path is not None and not json_path.parent.is_dir():
        raise click.BadParameter(
            f"directory {json_path.parent} does not exist.", param_hint="--json"
        )
    geometry = _geometry(options)
    layout = _layout(geometry, options)
    requests = _requests(options)
    device = options["device"] or ("cuda" if torch.cuda.is_available() else "cpu")
    run_options = ReplayOptions(
        running=options["running"],
        seed=options["seed"],
        backend=options["backend"],
        device=device,
        verify=options["verify"],
    )
    result = _run(requests, layout, run_options)
    report = build_report(_settings(options, geometry, layout, len(requests), result), result)
    if json_path is not None:
        json_path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print_report(report, Console())
    sys.exit(0 if result.passed else 1)


def _geometry(options: dict[str, Any]) -> Geometry:
    page_bytes: int | None = options["page_bytes"]
    if page_bytes is None:
        for name in ("page_size", "state_bytes"):
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
    return Geometry("explicit sizes", page_bytes, page_size, options["state_bytes"] or 0)


def _layout(geometry: Geometry, options: dict[str, Any]) -> PoolLayout:
    try:
        return plan_pools(geometry, int(options["pool_gib"] * GIB), options["page_scale"])
    except ValueError as error:
        raise click.UsageError(f"--pool-gib, --page-scale: {error}") from error


def _requests(options: dict[str, Any]) -> list[Request]:
    trace_path: Path | None = options["trace_path"]
    if trace_path is None:
        return generate_trace(options["limit"] or DEFAULT_REQUESTS, options["seed"])
    try:
        return read_trace(trace_path, options["limit"])
    except TraceError as error:
        raise click.BadParameter(str(error), param_hint="--trace") from error


def _run(requests: list[Request], layout: PoolLayout, options: ReplayOptions) -> ReplayResult:
    """Replay behind a progress bar, which is drawn on stderr if that is a terminal."""
    try:
        arena = make_arena(layout, options)
    except AllocatorError as error:
        raise click.UsageError(f"the allocator refused these options: {error}") from error
    except (MemoryError, RuntimeError) as error:
        raise click.UsageError(f"no memory for a pool of this size: {error}") from error
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
        task = progress.add_task("replay", total=len(requests))
        try:
            return replay_trace(arena, layout, requests, options, lambda: progress.advance(task))
        except AllocatorError as error:
            raise click.ClickException(f"{type(error).__name__}: {error}") from error


def _settings(
    options: dict[str, Any],
    geometry: Geometry,
    layout: PoolLayout,
    request_count: int,
    result: ReplayResult,
) -> dict[str, Any]:
    trace_path: Path | None = options["trace_path"]
    return {
        "trace": trace_path.name if trace_path else "generated trace",
        "requests": request_count,
        "geometry": geometry.name,
        "pool_gib": options["pool_gib"],
        "page_scale": str(options["page_scale"]),
        "page_bytes": layout.page_bytes,
        "page_size": layout.page_size,
        "state_bytes": layout.state_bytes,
        "num_pages": layout.num_pages,
        "state_slots": layout.state_slots,
        "running": options["running"],
        "seed": options["seed"],
        "verify": options["verify"],
        "backend": result.backend,
        "device": result.device,
        "kvdefrag": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }

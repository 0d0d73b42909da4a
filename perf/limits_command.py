"""The command `limits`: what each GPU's memory allows, beside what the compiled kernels ask."""

import json
from pathlib import Path
from typing import Any

import click
import triton
from rich.console import Console, Group
from rich.progress import Progress
from rich.table import Table

from kvdefrag import __version__

from .ahead_of_time import CannotCompile
from .limits import (
    COMPILES,
    DATA_LATENCY_US,
    GPUS,
    KERNELS,
    LATENCY_US,
    LAUNCH_US,
    LOOK_UP_LATENCY_US,
    REGISTER_UNIT,
    REGISTERS_PER_SM,
    WARPS_PER_SM,
    compile_kernels,
    limits_of,
)

Report = dict[str, Any]

KIB = 1 << 10
COMPUTED = "Computed, not measured: the code is compiled here, and nothing runs on a GPU."


@click.command()
@click.option(
    "--pages",
    type=click.IntRange(min=1),
    default=4096,
    show_default=True,
    help="Pages of the move batch whose time floor is shown.",
)
@click.option(
    "--page-bytes",
    type=click.IntRange(min=1),
    default=64 * KIB,
    show_default=True,
    help="Bytes of one of its pages.",
)
@click.option(
    "--json",
    "json_path",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Also write the figures to this file.",
)
def limits(pages: int, page_bytes: int, json_path: Path | None) -> None:
    """Compute how fast pages can move on A100, H100, H200 and B200; no GPU needed.

    The copy kernels are compiled here for each of them. Their registers, warps and loads say how
    many bytes an SM has in flight; peak bandwidth times latency says how many it needs. The floor
    is every byte read and written once at the bandwidth that a copy sustains, plus one launch.

    Everything is computed, not measured. Sustained bandwidth: H100 from vLLM #49436, B200 from
    vLLM #48110 (GB200), H200 from one torch device-to-device copy, A100 assumed. Peak of B200:
    pytorch/ao #4002. Bytes that CUB aims at: tuning_transform.cuh of NVIDIA/cccl. Latencies and
    launch cost are assumptions, printed with the result.

    Exit status: 0, or 2 for a bad option and where nothing can be compiled.
    """
    if json_path is not None and not json_path.parent.is_dir():
        raise click.BadParameter(
            f"directory {json_path.parent} does not exist.", param_hint="--json"
        )
    report = _build_report(pages, page_bytes)
    if json_path is not None:
        json_path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    _print_report(report, Console())


def _build_report(pages: int, page_bytes: int) -> Report:
    """Compile behind a progress bar, which is drawn on stderr if that is a terminal."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("compile", total=COMPILES)
        try:
            codes = compile_kernels(lambda: progress.advance(task))
        except CannotCompile as error:
            raise click.UsageError(f"the kernels cannot be compiled here: {error}") from error
    return {
        "computed_not_measured": True,
        "pages": pages,
        "page_bytes": page_bytes,
        "latency_us": LATENCY_US,
        "launch_us": LAUNCH_US,
        "gpus": [limits_of(gpu, codes, pages * page_bytes) for gpu in GPUS],
        "kvdefrag": __version__,
        "triton": triton.__version__,
    }


def _print_report(report: Report, console: Console) -> None:
    tables = (_gpu_table(report), _kernel_table(report), _share_table(report))
    console.print(Group(COMPUTED, *(part for table in tables for part in ("", table)), ""))
    for line in _assumptions(report):
        console.print(line, style="dim", highlight=False)


def _gpu_table(report: Report) -> Table:
    title = f"floor: time to move {report['pages']:,} pages of {report['page_bytes']:,} bytes"
    table = Table("GPU", title=title, title_justify="left")
    for heading in ("SMs", "peak TB/s", "sustained", "floor us", "need KiB/SM", "CUB KiB/SM"):
        table.add_column(heading, justify="right")
    for gpu in report["gpus"]:
        table.add_row(
            gpu["name"],
            str(gpu["sms"]),
            f"{gpu['peak_tb_s']:.2f}",
            f"{gpu['sustained_tb_s']:.2f}",
            f"{gpu['floor_us']:,.1f}",
            f"{gpu['needed_bytes_per_sm'] / KIB:.1f}",
            f"{gpu['cub_bytes_per_sm'] / KIB:.0f}",
        )
    return table


def _kernel_table(report: Report) -> Table:
    """A row for each kernel and architecture: GPUs of one architecture run the same code."""
    title = "KiB that the compiled copy kernels have in flight on an SM"
    table = Table("code", "kernel", title=title, title_justify="left")
    for heading in ("registers", "warps", "loads", "programs", "KiB/SM"):
        table.add_column(heading, justify="right")
    for gpu in {gpu["arch"]: gpu for gpu in report["gpus"]}.values():
        for name, kernel in gpu["kernels"].items():
            counts = (kernel[key] for key in ("registers", "warps", "loads", "programs_per_sm"))
            kib = f"{kernel['bytes_in_flight_per_sm'] / KIB:.0f}"
            table.add_row(gpu["arch"], name, *map(str, counts), kib)
        table.add_section()
    return table


def _share_table(report: Report) -> Table:
    table = Table("kernel", title="in flight, as a share of the need", title_justify="left")
    for gpu in report["gpus"]:
        table.add_column(gpu["name"], justify="right")
    for name in KERNELS:
        shares = (gpu["kernels"][name]["share_of_need"] for gpu in report["gpus"])
        table.add_row(name, *(f"{share:.0%}" for share in shares))
    return table


def _assumptions(report: Report) -> list[str]:
    sources = [f"  {gpu['name']}: {gpu['sustained_source']}" for gpu in report["gpus"]]
    return [
        "sustained TB/s, read and written bytes together:",
        *sources,
        f"floor: 2 x pages x bytes / sustained, and {LAUNCH_US} us for one launch (assumed)",
        f"need: half the peak, which is read, x {LATENCY_US:.1f} us / SMs; the latency is assumed:",
        f"  {LOOK_UP_LATENCY_US} us each for fault record and page ids, {DATA_LATENCY_US} for data",
        "in flight: programs x warps x 32 threads x loads x 16 bytes",
        "loads: of 16 bytes, that a thread issues before its first store",
        f"programs: what {REGISTERS_PER_SM:,} registers and {WARPS_PER_SM} warps of an SM hold;",
        f"  registers in units of {REGISTER_UNIT} a warp, warps in fours",
        "CUB: what its transform aims at (tuning_transform.cuh of NVIDIA/cccl)",
    ]

"""The command `bench`: run the benchmark files of this folder and keep their record."""

import os
import subprocess
import sys
from datetime import datetime, timezone
from importlib.util import find_spec
from pathlib import Path

import click

HERE = Path(__file__).resolve().parent
FILES = {path.stem.removeprefix("bench_"): path for path in sorted(HERE.glob("bench_*.py"))}
NOTHING_SELECTED = 5
"""pytest's exit status."""


@click.command()
@click.option(
    "--layer",
    "layers",
    type=click.Choice(list(FILES)),
    multiple=True,
    help="Run this file of benchmarks only; may be given several times. Default: all.",
)
@click.option(
    "--select",
    metavar="WORDS",
    help="Run only benchmarks whose names hold this, as `-k` of pytest: "
    "`4096`, `flush and not eager`.",
)
@click.option(
    "--json",
    "json_path",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    show_default="results/bench-DATE-TIME.json",
    help="The record to write.",
)
def bench(layers: tuple[str, ...], select: str | None, json_path: Path | None) -> None:
    """Measure the allocator against its baselines, and write the record.

    Every benchmark checks bytes and tables before it reports a time. The record is pytest-benchmark
    JSON, which `report`, `compare` and `export` read. Without a GPU the host side is measured;
    Triton's interpreter shows that kernels work, and its rows never count as performance.

    Exit status: 0; 1 if a benchmark found a wrong result, and then no record should be trusted; 2
    for a bad option.
    """
    missing = [name for name in ("pytest", "pytest_benchmark") if find_spec(name) is None]
    if missing:
        raise click.UsageError(f"{' and '.join(missing)} not found: pip install 'kvdefrag[perf]'")
    if not FILES:
        raise click.UsageError(f"no bench_*.py beside {Path(__file__).name}.")
    if json_path is None:
        json_path = _default_path()
        json_path.parent.mkdir(exist_ok=True)
    elif not json_path.parent.is_dir():
        raise click.BadParameter(
            f"directory {json_path.parent} does not exist.", param_hint="--json"
        )
    status = _run_pytest([FILES[layer] for layer in layers or FILES], select, json_path)
    if status == NOTHING_SELECTED:
        raise click.UsageError("no benchmark has such a name.")
    if status == 0:
        click.echo(f"record: {json_path}")
    sys.exit(1 if status else 0)


def _run_pytest(files: list[Path], select: str | None, json_path: Path) -> int:
    """Its output goes straight through: it counts the benchmarks as they end."""
    options = [
        f"--benchmark-json={json_path.resolve()}",
        "--benchmark-columns=min,median,iqr,rounds",
        "--import-mode=importlib",
        "--override-ini=console_output_style=count",
        "-p",
        "no:cacheprovider",
    ]
    if select is not None:
        options += ["-k", select]
    # Else `python -m` puts the current folder, and with it bare `kernels`, on the path.
    environment = {**os.environ, "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-m", "pytest", *options, *map(str, files)]
    return subprocess.run(command, env=environment).returncode


def _default_path() -> Path:
    now = datetime.now(timezone.utc)
    return Path("results", f"bench-{now:%Y%m%d-%H%M%S}.json")

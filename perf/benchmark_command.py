"""The command `bench`: run the benchmark files of this folder and keep their record."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from datetime import datetime, timezone
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from .beside import is_tree, run_by_turns

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
@click.option(
    "--beside",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Another source tree, say the last release: both are measured by turns in one run.",
)
@click.option(
    "--beside-json",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="The record of the other tree.",
)
@click.option(
    "--turns",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="With --beside: runs of each tree.",
)
def bench(
    layers: tuple[str, ...],
    select: str | None,
    json_path: Path | None,
    beside: Path | None,
    beside_json: Path | None,
    turns: int,
) -> None:
    """Measure the allocator against its baselines, and write the record.

    Every benchmark checks bytes and tables before it reports a time. The record is pytest-benchmark
    JSON, which `report`, `compare` and `export` read. Without a GPU the host side is measured;
    Triton's interpreter shows that kernels work, and its rows never count as performance.

    With --beside the benchmarks of this tree run on the code of both, by turns; `compare` then says
    what a change did, on a machine that has other work as well.

    Exit status: 0; 1 if a benchmark found a wrong result, and then no record should be trusted; 2
    for a bad option.
    """
    if (beside is None) != (beside_json is None):
        raise click.UsageError("--beside and --beside-json go together.")
    if beside is not None and not is_tree(beside):
        raise click.BadParameter(f"{beside} is no source tree of kvdefrag.", param_hint="--beside")
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
    files = [FILES[layer] for layer in layers or FILES]
    if beside is None or beside_json is None:
        status = _run_pytest(files, select, json_path, os.environ)
    else:
        status = _run_both(files, select, turns, (json_path, beside_json), beside)
    if status == NOTHING_SELECTED:
        raise click.UsageError("no benchmark has such a name.")
    if status == 0:
        click.echo(f"record: {json_path}")
    sys.exit(1 if status else 0)


def _run_both(
    files: list[Path], select: str | None, turns: int, json_paths: tuple[Path, Path], beside: Path
) -> int:
    def run(environment: Mapping[str, str], json_path: Path) -> int:
        return _run_pytest(files, select, json_path, environment)

    with TemporaryDirectory() as scratch:
        found = run_by_turns(beside, turns, Path(scratch), run)
    if isinstance(found, int):
        return found
    for path, record in zip(json_paths, found, strict=True):
        path.write_text(json.dumps(record, indent=1))
    return 0


def _run_pytest(
    files: list[Path], select: str | None, json_path: Path, environment: Mapping[str, str]
) -> int:
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
    # A test run in several processes is no reason to leave out the timing.
    clean = {key: value for key, value in environment.items() if "PYTEST_XDIST" not in key}
    # Else `python -m` puts the current folder, and with it bare `kernels`, on the path.
    clean["PYTHONSAFEPATH"] = "1"
    command = [sys.executable, "-m", "pytest", *options, *map(str, files)]
    return subprocess.run(command, env=clean).returncode


def _default_path() -> Path:
    now = datetime.now(timezone.utc)
    return Path("results", f"bench-{now:%Y%m%d-%H%M%S}.json")

"""The command `export`: a benchmark record in, files for other dashboards out."""

import json
from pathlib import Path

import click

from .benchmark_record import as_record
from .export import GITHUB, HUD, export_record
from .result_files import ResultError, read_result

SUFFIXES = {GITHUB: "github-action-benchmark", HUD: "oss_ci_benchmark_v3"}


@click.command()
@click.argument(
    "record_path",
    metavar="RECORD.json",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)
@click.option(
    "--format",
    "shapes",
    type=click.Choice([GITHUB, HUD]),
    multiple=True,
    help="Write this one only; may be given twice. Default: both.",
)
@click.option(
    "--out",
    "folder",
    type=click.Path(exists=True, file_okay=False, writable=True, path_type=Path),
    default=".",
    show_default="the current one",
    help="Folder for the files.",
)
def export(record_path: Path, shapes: tuple[str, ...], folder: Path) -> None:
    """Turn a benchmark record, as `bench` writes it, into files that dashboards read.

    github: RECORD.github-action-benchmark.json for github-action-benchmark, to be read with its
    tool customSmallerIsBetter. hud: RECORD.oss_ci_benchmark_v3.json for the PyTorch HUD; its
    uploader adds repository, commit and job.

    Rows of Triton's interpreter are left out. Exit status: 0, or 2 for a file that is no record.
    """
    try:
        record = as_record(read_result(record_path))
        if not record.measured:
            raise click.UsageError(f"{record.name} holds no measured row.")
        entries = {shape: export_record(record, shape) for shape in shapes or (GITHUB, HUD)}
    except ResultError as error:
        raise click.UsageError(str(error)) from error
    for shape, content in entries.items():
        path = folder / f"{record_path.stem}.{SUFFIXES[shape]}.json"
        path.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        click.echo(f"{len(content)} entries: {path}")
    if record.interpreted:
        click.echo(f"left out: {record.interpreted} rows of Triton's interpreter")

"""The command `compare`: two benchmark records in, the rows that became slower out."""

import json
import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .benchmark_record import Record, as_record
from .compare import PAIRED, Comparison, compare_records
from .result_files import ResultError, read_result

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def parse_limit(_context: click.Context, _option: click.Parameter, value: str | None) -> Any:
    """Turn `10%`, `10 %` or `0.1` into 0.1; None stays None."""
    if value is None:
        return None
    text = value.strip()
    try:
        limit = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        limit = -1.0
    if not 0 <= limit < float("inf"):
        raise click.BadParameter(
            f"{value!r} is neither a percentage like 10% nor a share like 0.1."
        )
    return limit


@click.command()
@click.argument("before", metavar="A.json", type=FILE)
@click.argument("after", metavar="B.json", type=FILE)
@click.option(
    "--fail-above",
    "limit",
    callback=parse_limit,
    metavar="LIMIT",
    help="Exit with 1 if a row of B is slower by more than this, as in 10% or 0.1, "
    "or if a row of A is not in B.",
)
@click.option("--strict", is_flag=True, help="Fail also where the spread may be the reason.")
@click.option("--allow-missing", is_flag=True, help="Rows of A that B lacks are named, no more.")
@click.option(
    "--json",
    "json_path",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Also write the figures to this file.",
)
def compare(
    before: Path,
    after: Path,
    limit: float | None,
    strict: bool,
    allow_missing: bool,
    json_path: Path | None,
) -> None:
    """Compare two benchmark records, as `bench` writes them, row by row.

    Rows that were timed in turns with a baseline are compared by their ratio to it, so that a noisy
    machine does not decide; other rows by their median. A row fails if it is slower by more than
    the limit and that stands out of the spread of its rounds: more rounds, or a quieter machine,
    show smaller changes. Rows of Triton's interpreter are left out.

    Exit status: 0; with --fail-above 1 if a row is too slow or missing; 2 for a file that cannot be
    read, and where the records have no row in common.
    """
    try:
        records = [as_record(read_result(path)) for path in (before, after)]
    except ResultError as error:
        raise click.UsageError(str(error)) from error
    found = compare_records(*records)
    if not found.changes:
        raise click.UsageError(
            f"{before.name} and {after.name} have no row in common that could be compared."
        )
    console = Console()
    failing = set() if limit is None else {change.name for change in found.failing(limit, strict)}
    _print_table(found, failing, console)
    _print_notes(found, records, console)
    if json_path is not None:
        report = _as_dict(found, records, limit, failing)
        json_path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    if limit is not None:
        sys.exit(_verdict(found, failing, limit, allow_missing, console))


def _print_table(found: Comparison, failing: set[str], console: Console) -> None:
    table = Table("row", "by")
    for heading in ("A", "B", "slower by"):
        table.add_column(heading, justify="right")
    for change in found.changes:
        unit = "x" if change.measure == PAIRED else " us"
        table.add_row(
            escape(change.name),
            change.measure,
            f"{change.before:,.2f}{unit}",
            f"{change.after:,.2f}{unit}",
            f"{change.slower:+.1%}",
            style="bold red" if change.name in failing else None,
        )
    console.print(table)


def _print_notes(found: Comparison, records: list[Record], console: Console) -> None:
    notes = [f"only in A: {name}" for name in found.missing]
    notes += [f"only in B: {name}" for name in found.added]
    for side, record in zip("AB", records, strict=True):
        if record.interpreted:
            notes.append(f"left out of {side}: {record.interpreted} rows of Triton's interpreter")
    by_median = any(change.measure != PAIRED for change in found.changes)
    if by_median and not found.same_machine:
        notes.append(f"medians of two machines: {records[0].machine}; {records[1].machine}")
    for note in notes:
        console.print(escape(note), highlight=False, soft_wrap=True)


def _verdict(
    found: Comparison, failing: set[str], limit: float, allow_missing: bool, console: Console
) -> int:
    """Say it, and return the exit status."""
    unclear = [change for change in found.failing(limit, True) if change.name not in failing]
    for change in unclear:
        line = f"unclear {change.name}: {change.slower:.1%} slower, within the spread of the rounds"
        console.print(escape(line), highlight=False, soft_wrap=True)
    slow = [change for change in found.changes if change.name in failing]
    for change in slow:
        line = f"FAILED {change.name}: {change.slower:.1%} slower, {limit:.1%} allowed"
        console.print(escape(line), highlight=False, soft_wrap=True)
    lost = () if allow_missing else found.missing
    for name in lost:
        console.print(escape(f"FAILED {name}: not in B"), highlight=False, soft_wrap=True)
    if not slow and not lost:
        clearly = "clearly " if unclear else ""
        console.print(f"{len(found.changes)} rows, none {clearly}slower by more than {limit:.1%}")
    return 1 if slow or lost else 0


def _as_dict(
    found: Comparison, records: list[Record], limit: float | None, failing: set[str]
) -> dict[str, Any]:
    return {
        "before": {"file": records[0].name, "commit": records[0].commit},
        "after": {"file": records[1].name, "commit": records[1].commit},
        "same_machine": found.same_machine,
        "fail_above": limit,
        "rows": [
            {**change._asdict(), "failed": change.name in failing} for change in found.changes
        ],
        "missing": list(found.missing),
        "added": list(found.added),
    }

"""The page: result files in, one HTML document out that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from kvdefrag import __version__

from .bandwidth_chart import bandwidth_chart
from .benchmark_record import Record, as_record
from .charts import Cell
from .comparison_charts import hit_rate_chart, host_time_chart
from .history_chart import history_chart
from .replay_charts import heat_chart, occupancy_chart
from .result_files import COMPARISON, GPU_CHECK, LIMITS, RECORD, REPLAY, ResultFile
from .tiles import headline
from .time_charts import (
    alloc_free_chart,
    flush_chart,
    gpu_flush_chart,
    plan_chart,
    source_of,
)

TITLE = "kvdefrag performance"


def build_page(files: Sequence[ResultFile], title: str = TITLE) -> str:
    """The whole document. Of several files of a kind the newest lead; all make the history."""
    records = sorted((as_record(file) for file in files if file.kind == RECORD), key=_when)
    checks = sorted(
        (file for file in files if file.kind == GPU_CHECK and _is_gpu(file)),
        key=lambda file: str(file.data.get("date", "")),
    )
    replays, comparisons, limits = (
        [file for file in files if file.kind == kind] for kind in (REPLAY, COMPARISON, LIMITS)
    )
    charts = [
        flush_chart(records),
        gpu_flush_chart(checks),
        bandwidth_chart(checks, records, limits),
        hit_rate_chart(comparisons),
        host_time_chart(comparisons),
        occupancy_chart(replays),
        heat_chart(replays),
        plan_chart(records),
        alloc_free_chart(records),
        history_chart(records, checks),
    ]
    return _render(
        title=title,
        version=__version__,
        tiles=headline(records, checks, comparisons, replays),
        charts=charts,
        figures={chart.key: chart.figure for chart in charts if chart.figure},
        sources=_sources(records, files),
        notes=_notes(records, files),
    )


def number_text(value: Cell) -> str:
    """How a table shows a cell: four digits or so; the exact value stands behind it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 2
        return f"{value:,.{digits}f}" if abs(value) >= 1 or value == 0 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def is_number(value: Cell) -> bool:
    """Whether a cell stands to the right and carries its exact value."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _render(**content: Any) -> str:
    environment = Environment(
        loader=PackageLoader("kvdefrag.perf", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = number_text
    environment.tests["numeric"] = is_number
    script = environment.get_template("report_script.html").render()
    scripts = [_closed(get_plotlyjs()), _closed(script)]
    return environment.get_template("report_page.html").render(
        scripts=[Markup(text) for text in scripts],
        script_sources=" ".join(f"'sha256-{_digest(text)}'" for text in scripts),
        **content,
    )


def _closed(script: str) -> str:
    """A script that the page's own tag can hold; a fault of ours, not of the input, if not."""
    if "</script" in script.lower():
        raise AssertionError("a script of the page would end its element")
    return script


def _digest(script: str) -> str:
    """By which the page's policy lets its own scripts run, and no other."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _sources(records: Sequence[Record], files: Sequence[ResultFile]) -> list[str]:
    lines = [source_of(record) for record in records]
    for file in files:
        if file.kind == GPU_CHECK:
            commit = file.data["software"].get("commit") or "no commit"
            device, day = file.data["device"]["name"], file.data.get("date", "no date")
            lines.append(f"{file.name}: commit {commit[:10]}, {day}, {device}")
        elif file.kind != RECORD:
            lines.append(f"{file.name}: {file.kind}")
    return lines


def _notes(records: Sequence[Record], files: Sequence[ResultFile]) -> list[str]:
    notes = [
        f"{record.name}: {record.interpreted} rows of Triton's interpreter are not shown; "
        "they say nothing about speed."
        for record in records
        if record.interpreted
    ]
    for file in files:
        if file.kind == GPU_CHECK:
            if not _is_gpu(file):
                notes.append(f"{file.name}: run in Triton's interpreter, its times are not shown.")
            if not file.data.get("passed", True):
                notes.append(f"{file.name}: a check of correctness failed in this run.")
        if file.kind == LIMITS:
            notes.append(f"{file.name}: computed, not measured.")
    return notes


def _when(record: Record) -> str:
    return record.when


def _is_gpu(check: ResultFile) -> bool:
    """The interpreter's checks name no compute capability."""
    return "capability" in check.data["device"]

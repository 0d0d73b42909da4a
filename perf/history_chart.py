"""One benchmark over several result files: a line for each machine, a mark for each commit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import plotly.graph_objects as go

from .benchmark_record import FLUSH, OURS, PLAN, Record
from .charts import Cell, Chart, NumberTable, as_figure, line, plain
from .result_files import ResultFile
from .time_charts import GPU_GROUP

TITLE = "History"
TEXT = (
    "Median of one benchmark in every result file, oldest on the left. Machines are never joined "
    "by a line: compare points of one machine only."
)
HOW = "No result with a date among the files; bench --json writes one at a time."
LAYERS = (FLUSH, PLAN)
COMMIT_CHARACTERS = 10


class Point(NamedTuple):
    """One benchmark in one file."""

    benchmark: str
    when: str
    commit: str
    machine: str
    median_us: float
    file: str

    @property
    def at(self) -> str:
        """The place on the axis: the same for all of one file."""
        day_and_minute = plain(self.when[:16].replace("T", " "))
        return f"{day_and_minute}<br>{plain(self.commit or 'no commit')}"


def history_chart(records: Sequence[Record], checks: Sequence[ResultFile]) -> Chart:
    """All our rows; flush and plan come first."""
    points = [point for record in records for point in _of_record(record)]
    points += [point for check in checks for point in _of_check(check)]
    if not points:
        return Chart("history", TITLE, TEXT, missing=HOW)
    points.sort(key=lambda point: point.when)
    # The oldest file may hold benchmarks that are gone: those of the newest come first.
    newest_first = sorted(points, key=lambda point: point.when, reverse=True)
    benchmarks = list(dict.fromkeys(point.benchmark for point in newest_first))
    benchmarks.sort(key=lambda name: -sum(point.benchmark == name for point in points))
    benchmarks.sort(key=_layer_order)
    machines = list(dict.fromkeys(point.machine for point in points))
    traces = [
        _trace([p for p in points if (p.benchmark, p.machine) == (benchmark, machine)], case, i)
        for case, benchmark in enumerate(benchmarks)
        for i, machine in enumerate(machines)
    ]
    order = list(dict.fromkeys(point.at for point in points))
    figure = as_figure(
        go.Figure([trace for trace in traces if trace.x]),
        440,
        xaxis={"type": "category", "categoryarray": order, "title": {"text": "date and commit"}},
        yaxis={"title": {"text": "microseconds"}, "rangemode": "tozero"},
        showlegend=True,
    )
    headings = ("benchmark", "date", "commit", "machine", "median us", "file")
    rows: list[tuple[Cell, ...]] = [
        tuple(point) for benchmark in benchmarks for point in points if point[0] == benchmark
    ]
    table = NumberTable(headings, rows)
    return Chart("history", TITLE, TEXT, "", figure, table, tuple(benchmarks), "Benchmark")


def _of_record(record: Record) -> list[Point]:
    return [
        Point(row.name, record.when, record.commit, record.machine, row.median_us, record.name)
        for row in record.measured
        if row.contender == OURS
    ]


def _of_check(check: ResultFile) -> list[Point]:
    data = check.data
    commit, _, changes = str(data["software"].get("commit") or "").partition("+")
    short = commit[:COMMIT_CHARACTERS] + (f"+{changes}" if changes else "")
    return [
        Point(_name(figure), data.get("date", ""), short, data["device"]["name"], value, check.name)
        for figure in data["figures"]
        if figure["group"] == GPU_GROUP and figure["what"] == OURS and figure["unit"] == "us"
        if (value := figure["value"]) is not None
    ]


def _name(figure: dict[str, Any]) -> str:
    words = (f"{value} {name}".replace("_", " ") for name, value in figure["case"].items())
    return f"gpu-check: {figure['group']}, {', '.join(words)}"


def _trace(points: list[Point], case: int, position: int) -> go.Scatter:
    return line(
        points[0].machine if points else "",
        [point.at for point in points],
        [point.median_us for point in points],
        case,
        1 + position % 8,
        hovertemplate="%{y:,.4~r} us",
    )


def _layer_order(benchmark: str) -> int:
    ranks = [i for i, layer in enumerate(LAYERS) if layer in benchmark]
    return ranks[0] if ranks else len(LAYERS)

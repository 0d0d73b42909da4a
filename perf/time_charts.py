"""Time against the number of holes or moves: every contender of one layer on log axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import plotly.graph_objects as go

from .benchmark_record import ALLOC_FREE, FLUSH, OURS, PLAN, Record, Row
from .charts import Cell, Chart, NumberTable, as_figure, bytes_text, line, log_axis, series_of
from .result_files import ResultFile

GPU_GROUP = "urgent flush"

Case = tuple[str, ...]


def flush_chart(records: Sequence[Record]) -> Chart:
    """A whole flush, ours and the baselines'."""
    text = (
        "Host time of one flush, median of rounds that alternate with the baselines. "
        "Every result was checked before its time was kept."
    )
    return _layer_chart(records, FLUSH, "flush", "Flush time against holes", text)


def plan_chart(records: Sequence[Record]) -> Chart:
    """The plan alone."""
    text = "Host time of the plan alone: holes in, moves out."
    return _layer_chart(records, PLAN, "plan", "Plan time against holes", text)


def alloc_free_chart(records: Sequence[Record]) -> Chart:
    """Calls that move nothing."""
    text = "Host time of the calls between flushes."
    return _layer_chart(records, ALLOC_FREE, "alloc-free", "Alloc and free against holes", text)


def gpu_flush_chart(checks: Sequence[ResultFile]) -> Chart:
    """Whole flushes on a GPU, from its check."""
    title, text = "Flush time on a GPU", "Host to host, the page copy included, by pages moved."
    traces: list[go.Scatter] = []
    rows: list[tuple[Cell, ...]] = []
    labels: list[str] = []
    for check in reversed(checks):
        figures = [
            figure
            for figure in check.data["figures"]
            if figure["group"] == GPU_GROUP and figure["unit"] == "us" and "moves" in figure["case"]
        ]
        whats = list(dict.fromkeys(figure["what"] for figure in figures))
        for position, what in enumerate(whats):
            points = sorted(
                (figure["case"]["moves"], figure["value"])
                for figure in figures
                if figure["what"] == what and figure["value"] is not None
            )
            series = series_of(what, position)
            x, y = zip(*points, strict=True) if points else ((), ())
            traces.append(_time_line(what, x, y, len(labels), series, "moves"))
        rows += [_gpu_row(check, figure) for figure in figures]
        if figures:
            labels.append(f"{check.data['device']['name']}, {check.data.get('date', '')}")
    if not labels:
        how = "No check of a GPU with flushes among the files; make gpu-check writes one."
        return Chart("gpu-flush", title, text, missing=how)
    headings = ("device", "allocator", "moves", "page bytes", "median us", "low us", "high us")
    figure = _log_figure(traces, "pages moved")
    table = NumberTable(headings, rows)
    return Chart("gpu-flush", title, text, "", figure, table, tuple(labels), "Device and date")


def _layer_chart(records: Sequence[Record], layer: str, key: str, title: str, text: str) -> Chart:
    """Rows of the latest record that has any with a number of holes."""
    for record in reversed(records):
        rows = [row for row in record.measured if row.layer == layer and _x(row) is not None]
        if rows:
            break
    else:
        how = f"No measured row of this layer among the files; bench --layer {layer} writes them."
        return Chart(key, title, text, missing=how)
    by_case: dict[Case, list[Row]] = {}
    for row in rows:
        by_case.setdefault(_case(row), []).append(row)
    cases = sorted(by_case, key=lambda case: _weight(by_case[case]), reverse=True)
    traces = [trace for i, case in enumerate(cases) for trace in _contenders(by_case[case], i)]
    unit = "holes" if rows[0].number("holes") is not None else "moves"
    return Chart(
        key,
        title,
        text,
        figure=_log_figure(traces, unit),
        table=_table(by_case, cases, unit),
        cases=tuple(_label(case, cases) for case in cases),
        case_label="Case",
        source=source_of(record),
    )


def source_of(record: Record) -> str:
    """Where numbers come from: file, commit, day and machine."""
    commit = f"commit {record.commit}" if record.commit else "no commit"
    return f"{record.name}: {commit}, {record.when[:10]}, {record.machine}"


def _contenders(rows: list[Row], case: int) -> list[go.Scatter]:
    contenders = sorted({row.contender for row in rows}, key=lambda name: (name != OURS, name))
    traces = []
    for position, contender in enumerate(contenders):
        points = sorted(
            (_x(row) or 0.0, row.median_us) for row in rows if row.contender == contender
        )
        x, y = zip(*points, strict=True)
        series = series_of(contender, position)
        traces.append(_time_line(contender, x, y, case, series, "holes"))
    return traces


def _log_figure(traces: list[go.Scatter], unit: str) -> dict[str, Any]:
    x, y = ([value for trace in traces for value in trace[axis]] for axis in "xy")
    return as_figure(
        go.Figure(traces), 440, xaxis=log_axis(unit, x), yaxis=log_axis("microseconds", y)
    )


def _time_line(
    name: str, x: Sequence[float], y: Sequence[float], case: int, series: int, unit: str
) -> go.Scatter:
    template = f"%{{x:,}} {unit}: %{{y:,.4~r}} us"
    return line(name, x, y, case, series, hovertemplate=template)


def _table(by_case: dict[Case, list[Row]], cases: list[Case], unit: str) -> NumberTable:
    headings = (
        "allocator", "case", unit, "median us", "lower quartile us", "upper quartile us",
        "rounds", "baseline / kvdefrag, paired",
    )  # fmt: skip
    rows = [
        (
            row.contender,
            _label(case, cases),
            _x(row),
            row.median_us,
            row.low_us,
            row.high_us,
            row.rounds,
            row.number("paired_ratio_p50"),
        )
        for case in cases
        for row in sorted(by_case[case], key=lambda row: (_x(row) or 0, row.contender != OURS))
    ]
    return NumberTable(headings, list(rows))


def _x(row: Row) -> float | None:
    holes = row.number("holes")
    return row.number("moves") if holes is None else holes


PARTS: tuple[tuple[str, Callable[[Any], str]], ...] = (
    ("page_bytes", lambda value: f"{bytes_text(value)} a page"),
    ("fragmentation", lambda value: f"fragmentation {value:g}"),
    ("device", str),
)


def _case(row: Row) -> Case:
    """What rows of one line have in common beside the contender, in words.

    Figures that a benchmark is not parametrised over may vary along a line.
    """
    parts = [row.operation]
    for name, say in PARTS:
        value = row.params.get(name) if row.params and name != "device" else row.extra.get(name)
        parts.append("" if value is None else say(value))
    return tuple(parts)


def _weight(rows: list[Row]) -> tuple[int, int]:
    """The case with most contenders and points is the one to look at first."""
    return len({row.contender for row in rows}), len(rows)


def _label(case: Case, cases: list[Case]) -> str:
    """The parts in which cases differ; all of them where there is one case."""
    differing = [
        part
        for i, part in enumerate(case)
        if part and (len(cases) == 1 or len({other[i] for other in cases}) > 1)
    ]
    return ", ".join(differing) or "one case"


def _gpu_row(check: ResultFile, figure: dict[str, Any]) -> tuple[Any, ...]:
    case = figure["case"]
    numbers = (case["moves"], case.get("page_bytes"), figure["value"])
    device = check.data["device"]["name"]
    return (device, figure["what"], *numbers, figure.get("low"), figure.get("high"))

"""One trace through every allocator: what it bought in hits, and what it cost in host time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import plotly.graph_objects as go

from .charts import NEUTRAL, PARTS, Cell, Chart, NumberTable, as_figure, plain, series_of
from .result_files import ResultFile

HOW = "No comparison among the files; replay --compare scalar,static --json writes it."
CALLS = ("alloc", "free", "flush")
ROW_HEIGHT = 44

Run = dict[str, Any]


class Case(NamedTuple):
    """All runs of one file with one pool size: these saw the same requests and the same bytes."""

    file: str
    label: str
    runs: list[Run]

    @property
    def passed(self) -> list[Run]:
        """A run with a wrong byte has no time and no hit rate worth drawing."""
        return [run for run in self.runs if run["passed"]]


def cases_of(files: Sequence[ResultFile]) -> list[Case]:
    """Newest file first, its pool sizes in their order; those with a run that passed."""
    cases = []
    for file in reversed(files):
        settings = file.data["settings"]
        by_size: dict[float | None, list[Run]] = {}
        for run in file.data["comparison"]:
            by_size.setdefault(run.get("pool_gib"), []).append(run)
        for size, runs in by_size.items():
            pool = None if size is None else f"{size:g} GiB"
            parts = (pool, file.name, settings.get("trace"), settings.get("geometry"))
            label = ", ".join(str(part) for part in parts if part)
            cases.append(Case(file.name, label, runs))
    return [case for case in cases if case.passed]


def hit_rate_chart(files: Sequence[ResultFile]) -> Chart:
    """Prefix hit rates side by side."""
    title = "Hit rate by allocator"
    text = "Share of prompt tokens that the prefix cache held, one trace through each allocator."
    cases = cases_of(files)
    if not cases:
        return Chart("hit-rate", title, text, missing=HOW)
    traces = [
        go.Bar(
            orientation="h",
            y=[plain(run_name(run))],
            x=[100 * run["hit_rate"]],
            text=[f"{100 * run['hit_rate']:.1f} %"],
            textposition="auto",
            name=plain(run_name(run)),
            showlegend=False,
            visible=number == 0,
            meta={"series": series_of(run["contender"], position), "case": number},
            hovertemplate="%{y}: %{x:.2f} %<extra></extra>",
        )
        for number, case in enumerate(cases)
        for position, run in enumerate(case.passed)
    ]
    headings = (
        "case", "allocator", "hit rate %", "evicted pages", "requests that waited", "bytes right",
    )  # fmt: skip
    rows: list[tuple[Cell, ...]] = [
        (
            case.label,
            run_name(run),
            100 * run["hit_rate"] if run["passed"] else None,
            sum(run["evicted_pages"].values()) if "evicted_pages" in run else None,
            run.get("waited_requests"),
            run["passed"],
        )
        for case in cases
        for run in case.runs
    ]
    return _chart(cases, ("hit-rate", title, text), traces, "% of prompt tokens", headings, rows)


def host_time_chart(files: Sequence[ResultFile]) -> Chart:
    """Host time in the allocator over the whole replay."""
    title = "Host time in the allocator over the replay"
    text = (
        "Measured in the calls of each allocator. A hatched part is a model, not a measurement: "
        "the stated cost of a read-back times the read-backs that were counted."
    )
    cases = cases_of(files)
    if not cases:
        return Chart("host-time", title, text, missing=HOW)
    traces = []
    for number, case in enumerate(cases):
        runs = case.passed
        parts = [call for call in CALLS if any(call in run["host_ms"] for run in runs)]
        for series, call in enumerate(parts or ["total"], start=PARTS + 1):
            values = [run["host_ms"].get(call) for run in runs]
            traces.append(_part(runs, call, values, series, number))
        modelled = [run.get("modelled_sync_ms") for run in runs]
        if any(modelled):
            traces.append(_part(runs, "syncs (model)", modelled, NEUTRAL, number))
    headings = (
        "case", "allocator", *(f"{call} ms" for call in CALLS), "total ms", "syncs ms (model)",
        "moves", "bytes moved", "device-to-host copies",
    )  # fmt: skip
    rows: list[tuple[Cell, ...]] = [
        (
            case.label,
            run_name(run),
            *(run["host_ms"].get(call) for call in (*CALLS, "total")),
            run.get("modelled_sync_ms"),
            run.get("moves"),
            run.get("bytes_moved"),
            run.get("device_to_host_copies"),
        )
        for case in cases
        for run in case.passed
    ]
    return _chart(cases, ("host-time", title, text), traces, "milliseconds", headings, rows)


def run_name(run: Run) -> str:
    """`static 1/2` for a static split, else the contender."""
    return f"{run['contender']} {run['split']}" if run.get("split") else str(run["contender"])


def _chart(
    cases: list[Case],
    words: tuple[str, str, str],
    traces: list[go.Bar],
    unit: str,
    headings: tuple[str, ...],
    rows: list[tuple[Cell, ...]],
) -> Chart:
    names = max(len(case.passed) for case in cases)
    figure = as_figure(
        go.Figure(traces),
        ROW_HEIGHT * names + 130,
        barmode="stack",
        xaxis={"title": {"text": unit}, "rangemode": "tozero"},
        yaxis={"type": "category", "autorange": "reversed"},
    )
    return Chart(
        *words,
        figure=figure,
        table=NumberTable(headings, rows),
        cases=tuple(case.label for case in cases),
        case_label="Pool and trace",
    )


def _part(runs: list[Run], name: str, values: list[float | None], series: int, case: int) -> go.Bar:
    return go.Bar(
        name=name,
        orientation="h",
        y=[plain(run_name(run)) for run in runs],
        x=values,
        visible=case == 0,
        meta={"series": series, "case": case},
        marker={"pattern": {"shape": "/" if series == NEUTRAL else ""}},
        hovertemplate="%{x:,.4~r} ms",
    )

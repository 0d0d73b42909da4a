"""One trace through every allocator: what it bought in hits, and what it cost in host time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from .charts import NEUTRAL, PARTS, Cell, Chart, NumberTable, as_figure, plain, series_of
from .result_files import ResultFile

HOW = "No comparison among the files; replay --compare scalar,static --json writes it."
CALLS = ("alloc", "free", "flush")
ROW_HEIGHT = 44

Run = dict[str, Any]


def hit_rate_chart(files: Sequence[ResultFile]) -> Chart:
    """Prefix hit rates side by side."""
    title = "Hit rate by allocator"
    text = "Share of prompt tokens that the prefix cache held, one trace through each allocator."
    if not _drawn(files):
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
            visible=case == 0,
            meta={"series": series_of(run["contender"], position), "case": case},
            hovertemplate="%{y}: %{x:.2f} %<extra></extra>",
        )
        for case, file in enumerate(_drawn(files))
        for position, run in enumerate(_passed(file))
    ]
    headings = (
        "file", "allocator", "hit rate %", "evicted pages", "requests that waited", "bytes right",
    )  # fmt: skip
    rows: list[tuple[Cell, ...]] = [
        (
            file.name,
            run_name(run),
            100 * run["hit_rate"] if run["passed"] else None,
            sum(run["evicted_pages"].values()) if "evicted_pages" in run else None,
            run.get("waited_requests"),
            run["passed"],
        )
        for file in _drawn(files)
        for run in file.data["comparison"]
    ]
    return _chart(files, ("hit-rate", title, text), traces, "% of prompt tokens", headings, rows)


def host_time_chart(files: Sequence[ResultFile]) -> Chart:
    """Host time in the allocator over the whole replay."""
    title = "Host time in the allocator over the replay"
    text = (
        "Measured in the calls of each allocator. A hatched part is a model, not a measurement: "
        "the stated cost of a read-back times the read-backs that were counted."
    )
    if not _drawn(files):
        return Chart("host-time", title, text, missing=HOW)
    traces = []
    for case, file in enumerate(_drawn(files)):
        runs = _passed(file)
        parts = [call for call in CALLS if any(call in run["host_ms"] for run in runs)]
        for series, call in enumerate(parts or ["total"], start=PARTS + 1):
            values = [run["host_ms"].get(call) for run in runs]
            traces.append(_part(runs, call, values, series, case))
        modelled = [run.get("modelled_sync_ms") for run in runs]
        if any(modelled):
            traces.append(_part(runs, "syncs (model)", modelled, NEUTRAL, case))
    headings = (
        "file", "allocator", *(f"{call} ms" for call in CALLS), "total ms", "syncs ms (model)",
        "moves", "bytes moved", "device-to-host copies",
    )  # fmt: skip
    rows: list[tuple[Cell, ...]] = [
        (
            file.name,
            run_name(run),
            *(run["host_ms"].get(call) for call in (*CALLS, "total")),
            run.get("modelled_sync_ms"),
            run.get("moves"),
            run.get("bytes_moved"),
            run.get("device_to_host_copies"),
        )
        for file in _drawn(files)
        for run in _passed(file)
    ]
    return _chart(files, ("host-time", title, text), traces, "milliseconds", headings, rows)


def run_name(run: Run) -> str:
    """`static 1/2` for a static split, else the contender."""
    return f"{run['contender']} {run['split']}" if run.get("split") else str(run["contender"])


def _chart(
    files: Sequence[ResultFile],
    words: tuple[str, str, str],
    traces: list[go.Bar],
    unit: str,
    headings: tuple[str, ...],
    rows: list[tuple[Cell, ...]],
) -> Chart:
    drawn = _drawn(files)
    names = max(len(_passed(file)) for file in drawn)
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
        cases=tuple(_label(file) for file in drawn),
        case_label="Comparison",
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


def _drawn(files: Sequence[ResultFile]) -> list[ResultFile]:
    """Newest first; those with a run whose bytes were right."""
    return [file for file in reversed(files) if _passed(file)]


def _passed(file: ResultFile) -> list[Run]:
    """A run with a wrong byte has no time and no hit rate worth drawing."""
    return [run for run in file.data["comparison"] if run["passed"]]


def _label(file: ResultFile) -> str:
    settings = file.data["settings"]
    pool = f"{settings['pool_gib']:g} GiB" if "pool_gib" in settings else None
    parts = [file.name, settings.get("trace"), settings.get("geometry"), pool]
    return ", ".join(str(part) for part in parts if part)

"""Copy bandwidth against page size, with what the memory allows drawn in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import plotly.graph_objects as go

from .benchmark_record import KERNELS, Record
from .charts import (
    NEUTRAL,
    Cell,
    Chart,
    NumberTable,
    as_figure,
    bytes_text,
    limit_line,
    line,
    series_of,
)
from .result_files import ResultFile

GROUP = "copy bandwidth"
DEVICE_COPY = "device copy"
TITLE = "Copy bandwidth against page size"
TEXT = (
    "Bytes read and written a second while pages move; the GPU check shuffles ids and keeps caches "
    "cold. The limit is what a copy sustains on that GPU: computed or taken from elsewhere."
)
HOW = "No bandwidth among the files; make gpu-check on a machine with a GPU writes it."


class Point(NamedTuple):
    """One measured bandwidth."""

    what: str
    page_bytes: float
    gbps: float
    low: float | None
    high: float | None


class Case(NamedTuple):
    """The points of one device, and the limits known for it: names and GB/s."""

    label: str
    points: list[Point]
    limits: list[tuple[str, float]]


def bandwidth_chart(
    checks: Sequence[ResultFile], records: Sequence[Record], limits: Sequence[ResultFile]
) -> Chart:
    """Every checked GPU, then every record whose kernels were timed, newest first."""
    cases = [_of_check(check, limits) for check in reversed(checks)]
    cases += [case for record in reversed(records) for case in _of_record(record, limits)]
    cases = [case for case in cases if case.points]
    if not cases:
        return Chart("bandwidth", TITLE, TEXT, missing=HOW)
    traces = [trace for i, case in enumerate(cases) for trace in _traces(case, i)]
    figure = as_figure(
        go.Figure(traces),
        440,
        xaxis=_page_axis(cases),
        yaxis={"title": {"text": "GB/s"}, "rangemode": "tozero"},
        showlegend=True,
    )
    headings = ("device", "copy", "page bytes", "GB/s", "low GB/s", "high GB/s", "% of limit")
    rows = [row for case in cases for row in _rows(case)]
    labels = tuple(case.label for case in cases)
    table = NumberTable(headings, rows)
    return Chart("bandwidth", TITLE, TEXT, "", figure, table, labels, "Device and file")


def _of_check(check: ResultFile, limits: Sequence[ResultFile]) -> Case:
    device = check.data["device"]["name"]
    points = [
        Point(
            figure["what"],
            figure["case"]["page_bytes"],
            figure["value"],
            figure.get("low"),
            figure.get("high"),
        )
        for figure in check.data["figures"]
        if figure["group"] == GROUP and figure["unit"] == "GB/s" and _is_complete(figure)
    ]
    return Case(f"{device}, {check.data.get('date', check.name)}", points, _limits(device, limits))


def _of_record(record: Record, limits: Sequence[ResultFile]) -> list[Case]:
    by_device: dict[str, list[Point]] = {}
    for row in record.measured:
        gbps, page_bytes = row.number("gbps"), row.number("page_bytes")
        if row.layer == KERNELS and gbps and page_bytes:
            device = str(row.extra.get("device", "cpu"))
            moves = row.number("moves")
            pages = "" if moves is None else f" of {moves:,} pages"
            name = f"{row.contender}, {row.operation}{pages}"
            by_device.setdefault(device, []).append(Point(name, page_bytes, gbps, None, None))
    return [
        Case(f"{device}, {record.name}", points, _limits(device, limits))
        for device, points in by_device.items()
    ]


def _limits(device: str, files: Sequence[ResultFile]) -> list[tuple[str, float]]:
    """By the GPU's short name: `H200` is part of `NVIDIA H200`."""
    for file in reversed(files):
        for gpu in file.data["gpus"]:
            if gpu["name"].split("-")[0] in device.replace("-", " ").split():
                return [
                    ("sustained limit", 1e3 * gpu["sustained_tb_s"]),
                    ("peak of the memory", 1e3 * gpu["peak_tb_s"]),
                ]
    return []


def _traces(case: Case, number: int) -> list[go.Scatter]:
    whats = list(dict.fromkeys(point.what for point in case.points))
    traces = []
    for position, what in enumerate(whats):
        points = sorted(point for point in case.points if point.what == what)
        series = NEUTRAL if what == DEVICE_COPY else series_of(what.split(",")[0], position)
        sizes = [point.page_bytes for point in points]
        rates = [point.gbps for point in points]
        template = "%{x:,} bytes: %{y:,.5~r} GB/s"
        traces.append(line(what, sizes, rates, number, series, hovertemplate=template))
    sizes = sorted({point.page_bytes for point in case.points})
    ends = [sizes[0], sizes[-1]]
    limits = zip(case.limits, ("dash", "dot"), strict=False)
    return traces + [limit_line(name, ends, value, number, dash) for (name, value), dash in limits]


def _page_axis(cases: list[Case]) -> dict[str, Any]:
    sizes = sorted({point.page_bytes for case in cases for point in case.points})
    return {
        "type": "log",
        "title": {"text": "page"},
        "tickvals": sizes,
        "ticktext": [bytes_text(size) for size in sizes],
    }


def _rows(case: Case) -> list[tuple[Cell, ...]]:
    limit = case.limits[0][1] if case.limits else None
    rows: list[tuple[Cell, ...]] = [
        (case.label, *point, 100 * point.gbps / limit if limit else None)
        for point in sorted(case.points, key=lambda point: (point.page_bytes, point.what))
    ]
    rows += [(case.label, name, None, value, None, None, None) for name, value in case.limits]
    return rows


def _is_complete(figure: dict[str, Any]) -> bool:
    return figure["value"] is not None and "page_bytes" in figure["case"]

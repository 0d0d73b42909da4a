"""Charts of one replay: occupancy over its requests, and the buffer before and after a flush."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from .charts import PARTS, Cell, Chart, NumberTable, as_figure, plain
from .result_files import ResultFile

HOW = "No replay with this among the files; replay --json writes it."
NO_MOVES = "No replay among the files has a flush that moved pages; replay --json writes it."
PLOT_HEIGHT = 230
SHADE = {"live": 0.75, "holes": 0.3}


def occupancy_chart(replays: Sequence[ResultFile]) -> Chart:
    """Live pages, holes and span of every pool over the requests."""
    title = "Holes and occupancy over the replay"
    text = "Pages of each pool that hold something, and the holes between them, as requests end."
    replays = [replay for replay in replays if replay.data.get("occupancy")][::-1]
    if not replays:
        return Chart("occupancy", title, text, missing=HOW)
    pools = [list(replay.data["occupancy"][0]["pools"]) for replay in replays]
    rows_of_plots = max(map(len, pools))
    figure = make_subplots(rows=rows_of_plots, shared_xaxes=True, vertical_spacing=0.08)
    for case, (replay, names) in enumerate(zip(replays, pools, strict=True)):
        for row, pool in enumerate(names, start=1):
            figure.add_traces(_pool_traces(replay, pool, row, case), rows=row, cols=1)
    figure.update_xaxes(title_text="requests finished", row=rows_of_plots)
    figure.update_yaxes(title_text="pages", rangemode="tozero")
    headings = ("file", "request", "pool", "live pages", "holes", "span")
    numbers: list[tuple[Cell, ...]] = [
        (replay.name, point["request"], pool, *_counts(pages))
        for replay in replays
        for point in replay.data["occupancy"]
        for pool, pages in point["pools"].items()
    ]
    return Chart(
        "occupancy",
        title,
        text,
        figure=as_figure(figure, PLOT_HEIGHT * rows_of_plots + 90, hovermode="x unified"),
        table=NumberTable(headings, numbers),
        cases=tuple(_label(replay) for replay in replays),
        case_label="Replay",
    )


def heat_chart(replays: Sequence[ResultFile]) -> Chart:
    """The buffer in equal pieces, and how full each is of each pool."""
    title = "The buffer before and after a flush"
    text = (
        "The byte buffer from its first byte on the left to its last on the right; the stronger "
        "the colour, the more of that piece is live."
    )
    replays = [replay for replay in replays if _heat(replay)][::-1]
    if not replays:
        return Chart("heat", title, text, missing=NO_MOVES)
    figure = make_subplots(
        rows=2, shared_xaxes=True, vertical_spacing=0.16, subplot_titles=("before", "after")
    )
    numbers: list[tuple[Cell, ...]] = []
    labels = []
    for case, replay in enumerate(replays):
        heat = replay.data["heat"]
        moves = heat.get("moves")
        moved = "" if moves is None else f", {moves:,} pages moved"
        labels.append(f"{_label(replay)}{moved}")
        cells_of_both = (*heat["before"], *heat["after"])
        pools = list(dict.fromkeys(pool for cell in cells_of_both for pool in cell))
        for row, moment in enumerate(("before", "after"), start=1):
            for series, pool in enumerate(pools, start=1):
                cells = [cell.get(pool, 0) for cell in heat[moment]]
                figure.add_trace(_strip(pool, pools, cells, series, case), row=row, col=1)
        numbers += [
            (replay.name, number, pool, before.get(pool, 0), after.get(pool, 0))
            for number, (before, after) in enumerate(
                zip(heat["before"], heat["after"], strict=False)
            )
            for pool in pools
        ]
    figure.update_xaxes(title_text="piece of the buffer", row=2)
    figure.update_yaxes(type="category", autorange="reversed")
    headings = ("file", "piece", "pool", "live before", "live after")
    return Chart(
        "heat",
        title,
        text,
        figure=as_figure(figure, 320),
        table=NumberTable(headings, numbers),
        cases=tuple(labels),
        case_label="Replay",
    )


def _pool_traces(replay: ResultFile, pool: str, row: int, case: int) -> list[go.Scatter]:
    points = [point for point in replay.data["occupancy"] if pool in point["pools"]]
    x = [point["request"] for point in points]

    def trace(what: str, key: str, **more: Any) -> go.Scatter:
        return go.Scatter(
            name=plain(f"{pool}: {what}"),
            x=x,
            y=[point["pools"][pool][key] for point in points],
            mode="lines",
            visible=case == 0,
            hovertemplate="%{y:,}",
            meta={"series": PARTS + row, "case": case, "shade": SHADE.get(what, 0)},
            **more,
        )

    return [
        trace("live", "live_pages", stackgroup=f"{case} {row}", line={"width": 1.5}),
        trace("holes", "hole_pages", stackgroup=f"{case} {row}", line={"width": 1, "dash": "dot"}),
        trace("span", "span_pages", line={"width": 1.2, "dash": "dash"}),
    ]


def _strip(pool: str, pools: list[str], cells: list[float], series: int, case: int) -> go.Heatmap:
    """One pool's row; the rows of the others are empty, since a trace has one colour."""
    nothing = [None] * len(cells)
    return go.Heatmap(
        name=plain(pool),
        x=list(range(len(cells))),
        y=list(map(plain, pools)),
        z=[cells if other == pool else nothing for other in pools],
        zmin=0,
        zmax=1,
        ygap=3,
        showscale=False,
        visible=case == 0,
        meta={"series": PARTS + series, "case": case, "heat": True},
        hovertemplate="piece %{x}: %{z:.0%} live<extra>%{y}</extra>",
    )


def _counts(pages: dict[str, float]) -> tuple[float, ...]:
    return pages["live_pages"], pages["hole_pages"], pages["span_pages"]


def _heat(replay: ResultFile) -> bool:
    heat = replay.data.get("heat")
    return bool(heat and heat["before"] and heat["after"])


def _label(replay: ResultFile) -> str:
    settings = replay.data["settings"]
    parts = [replay.name, settings.get("trace"), settings.get("geometry")]
    return ", ".join(str(part) for part in parts if part)

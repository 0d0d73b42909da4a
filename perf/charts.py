"""What a chart of the page is made of: a figure, the numbers in it, and how to say them in words.

Figures name no colour. Every trace carries ``meta`` with a ``series`` number, from which the page
takes the colour of its light or dark theme, and a ``case``, which its selector shows or hides.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import plotly.graph_objects as go

Cell = str | float | int | bool | None
Figure = dict[str, Any]

NEUTRAL = 0
SERIES = {
    "kvdefrag": 1,
    "scalar": 2,
    "batched": 3,
    "batched look-up": 3,
    "eager": 4,
    "static": 5,
    "page_by_page": 6,
    "page by page": 6,
    "kvdefrag with rebind": 7,
    "straightforward kernel": 8,
    "unpacked": 8,
}
"""A contender keeps its colour on every chart; 0 is the neutral colour of limits."""

SERIES_COUNT = 8
PARTS = 8
"""Colours from the one after this on are for parts of a whole: pools, or calls."""

DASHES = ("solid", "solid", "dot", "dashdot", "longdash", "longdashdot", "dash", "dot", "dashdot")
SYMBOLS = (
    "diamond-open",
    "circle",
    "square",
    "diamond",
    "triangle-up",
    "x",
    "cross",
    "circle-open",
    "star",
)
"""Lines differ in dash and mark as well, for those who cannot tell the colours apart."""

NAME_CHARACTERS = 80


class NumberTable(NamedTuple):
    """The numbers behind a chart, unrounded; the page rounds what it shows."""

    headings: tuple[str, ...]
    rows: list[tuple[Cell, ...]]


@dataclass(frozen=True)
class Chart:
    """A section of the page. Without a figure, ``missing`` says what input it takes."""

    key: str
    title: str
    text: str
    missing: str = ""
    figure: Figure | None = None
    table: NumberTable | None = None
    cases: tuple[str, ...] = ()
    case_label: str = ""
    source: str = ""


def plain(name: object) -> str:
    """A name for a figure, where plotly would read tags: cut short, and shown as it is."""
    text = str(name)
    if len(text) > NAME_CHARACTERS:
        text = f"{text[: NAME_CHARACTERS - 1]}…"
    return html.escape(text, quote=False)


def series_of(name: str, position: int) -> int:
    """The colour number of a contender; others take theirs by position."""
    return SERIES.get(name, 1 + position % SERIES_COUNT)


def line(
    name: str, x: Sequence[object], y: Sequence[float], case: int, series: int, **more: Any
) -> go.Scatter:
    """A line with marks; the first case is the one shown at first."""
    return go.Scatter(
        name=plain(name),
        x=list(x),
        y=list(y),
        mode="lines+markers",
        line={"dash": DASHES[series], "width": 2.5 if series == 1 else 1.8},
        marker={"symbol": SYMBOLS[series], "size": 8},
        meta={"series": series, "case": case},
        visible=case == 0,
        **more,
    )


def limit_line(name: str, x: Sequence[float], value: float, case: int, dash: str) -> go.Scatter:
    """A level that nothing measured here can pass, or that was not measured."""
    return go.Scatter(
        name=plain(name),
        x=list(x),
        y=[value] * len(x),
        mode="lines",
        line={"dash": dash, "width": 1.5},
        meta={"series": NEUTRAL, "case": case},
        visible=case == 0,
        hovertemplate="%{y:,.4~s}<extra>%{fullData.name}</extra>",
    )


def as_figure(figure: go.Figure, height: int, **layout: Any) -> Figure:
    """Plain lists and numbers, without plotly's own template."""
    figure.update_layout(height=height, **layout)
    plain_figure: Figure = json.loads(figure.to_json())
    plain_figure["layout"].pop("template", None)
    return plain_figure


def log_axis(title: str, values: Iterable[float]) -> dict[str, Any]:
    """A log axis, its ticks in plain numbers: powers of ten, and 2 and 5 where those are few."""
    known = [value for value in values if value > 0] or [1, 10]
    low, high = min(known), max(known)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1,) if high >= 100 * low else (1, 2, 5)
    ticks = [factor * 10.0**power for power in powers for factor in factors]
    return {
        "type": "log",
        "title": {"text": title},
        "tickvals": ticks,
        "ticktext": [f"{tick:,.0f}" if tick >= 1 else f"{tick:g}" for tick in ticks],
    }


def bytes_text(count: float) -> str:
    """`64 KiB` for 65536; bytes where no unit divides them."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size and count % size == 0:
            return f"{count / size:,.0f} {unit}"
    return f"{count:,.0f} bytes"

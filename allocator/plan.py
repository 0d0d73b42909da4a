"""Which pages move where: pure, vectorised, in depth coordinates.

Two rules. No torch, no side effect: arrays in, a ``MovePlan`` out. No direction: a depth counts
pages from the band's own end, so a hole of small depth is a good place and a live page of large
depth is in the way.

The plan is the page-by-page walk's, in the same order: the topmost live page goes into the lowest
hole, then the next, until the two would cross. A limit cuts the walk short, and so does a live page
that must stay. Other pages are merely passed over: neither live nor to be filled.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Depths = npt.NDArray[np.int64]

_NONE: Depths = np.empty(0, np.int64)
_NONE.flags.writeable = False


class MovePlan(NamedTuple):
    """What a flush does to one band. All arrays are int64 depths, in pages.

    ``sources[i]``, topmost first, moves to ``targets[i]``, lowest first. ``remaining``: the holes
    still inside the band afterwards, lowest first. ``span_after``: the band's span then.
    ``absorbed``: holes that became free space without a move. ``cut_by``: what cut the walk short,
    "limit", "stop" or "" for nothing. ``first_after``: the depth at which the band then starts; not
    0 only for one whose own end may move.
    """

    sources: Depths
    targets: Depths
    remaining: Depths
    span_after: int
    absorbed: int
    cut_by: str
    first_after: int = 0


def plan_moves(
    holes: Depths,
    span: int,
    move_limit: int | None = None,
    kept: Depths = _NONE,
    stop_depth: int = -1,
    sources_stay: bool = False,
) -> MovePlan:
    """Pack a band of ``span`` pages with sorted, distinct ``holes`` (int64 depths [holes]).

    At most ``move_limit`` moves (None: as many as full packing takes). Trailing holes are always
    absorbed. ``kept``: sorted pages that are neither live nor to be used, so that the band does not
    shrink below them. ``stop_depth``: no live page at this depth or below it moves. With
    ``sources_stay`` the pages that are vacated stay in the band, and are no holes yet. Time is
    linear in the holes and the kept pages, whatever the span.
    """
    if kept.size or stop_depth >= 0 or sources_stay:
        return _plan_around(holes, span, move_limit, kept, stop_depth, sources_stay)
    hole_count = holes.size
    if hole_count == 1:
        return _plan_one(holes, span, move_limit)
    live = span - hole_count
    moves = absorbed_from = int(holes.searchsorted(live))
    cut_by = ""
    if move_limit is not None and move_limit < moves:
        # After the moves the band holds the live pages and holes[moves:absorbed_from]. A hole is
        # absorbed if no more than ``moves`` live pages lie above it, that is from the first j with
        # span - holes[j] - (hole_count - j) <= moves on.
        moves = move_limit
        cut_by = "limit"
        absorbed_from = bisect_left(
            range(hole_count), live - moves, lo=moves, key=lambda j: int(holes[j]) - j
        )
    span_after = live + absorbed_from - moves
    return MovePlan(
        _live_above(holes[absorbed_from:], span_after, span),
        holes[:moves],
        holes[moves:absorbed_from],
        span_after,
        hole_count - absorbed_from,
        cut_by,
    )


def plan_floating(
    holes: Depths,
    span: int,
    move_limit: int | None = None,
    kept: Depths = _NONE,
    stop_depth: int = -1,
    sources_stay: bool = False,
) -> MovePlan:
    """``plan_moves`` for a band whose own end may move: the holes there are absorbed as well."""
    leading = int(np.count_nonzero(holes == np.arange(holes.size)))
    if leading == 0:
        return plan_moves(holes, span, move_limit, kept, stop_depth, sources_stay)
    plan = plan_moves(
        holes[leading:] - leading, span - leading, move_limit, kept - leading,
        max(-1, stop_depth - leading), sources_stay,
    )  # fmt: skip
    return MovePlan(
        plan.sources + leading,
        plan.targets + leading,
        plan.remaining + leading,
        plan.span_after + leading,
        plan.absorbed + leading,
        plan.cut_by,
        leading,
    )


def plan_withdrawal(holes: Depths, span: int, first: int, end: int) -> MovePlan:
    """Take a floating band of ``span`` pages, with sorted ``holes``, into depths ``first:end``.

    That range may begin below 0 and end behind the span, and has a place for every live page. What
    moves is what lies outside: into holes first, then into pages next to the band. Time is linear
    in the span.
    """
    is_live = np.ones(span, np.bool_)
    is_live[holes] = False
    inner_first, inner_end = min(max(first, 0), span), max(min(end, span), 0)
    outside = is_live.copy()
    outside[inner_first:inner_end] = False
    sources = outside.nonzero()[0][::-1]
    inner = holes[holes.searchsorted(inner_first) : holes.searchsorted(inner_end)]
    behind = np.arange(max(span, first), end)
    before = np.arange(min(0, end) - 1, first - 1, -1)
    targets = np.concatenate((inner, behind, before))[: sources.size]
    live = np.concatenate((inner_first + is_live[inner_first:inner_end].nonzero()[0], targets))
    first_after, span_after = (int(live.min()), int(live.max()) + 1) if live.size else (0, 0)
    remaining = inner[sources.size :]
    remaining = remaining[remaining.searchsorted(first_after) : remaining.searchsorted(span_after)]
    # Depths that were free space before and lie between the band's new ends are holes now.
    fresh = np.concatenate((behind, before))[max(0, sources.size - inner.size) :]
    fresh = fresh[(fresh >= first_after) & (fresh < span_after)]
    if fresh.size:
        remaining = np.sort(np.concatenate((remaining, fresh)))
    absorbed = holes.size - min(inner.size, sources.size) - int(np.isin(remaining, holes).sum())
    return MovePlan(sources, targets, remaining, span_after, absorbed, "", first_after)


def moves_to_reach(holes: Depths, span: int, span_limit: int) -> int:
    """Moves that bring a band down to ``span_limit`` pages: one a live page above that depth."""
    if span <= span_limit:
        return 0
    return span - span_limit - (holes.size - int(holes.searchsorted(span_limit)))


def _plan_one(holes: Depths, span: int, move_limit: int | None) -> MovePlan:
    if holes[0] == span - 1:
        return MovePlan(_NONE, _NONE, _NONE, span - 1, 1, "")
    if move_limit == 0:
        return MovePlan(_NONE, _NONE, holes, span, 0, "limit")
    return MovePlan(np.array([span - 1]), holes, _NONE, span - 1, 0, "")


def _plan_around(
    holes: Depths,
    span: int,
    move_limit: int | None,
    kept: Depths,
    stop_depth: int,
    sources_stay: bool,
) -> MovePlan:
    """The general walk. Pages that are not live are holes and kept pages alike."""
    not_live = np.concatenate((holes, kept))
    not_live.sort()
    below = not_live - np.arange(not_live.size)  # live pages below each page that is not live
    live = span - not_live.size
    ranks = np.arange(holes.size) + kept.searchsorted(holes)
    # Filling holes[j] takes j + 1 live pages above it.
    moves = int(np.count_nonzero(live - below[ranks] > np.arange(holes.size)))
    cut_by = ""
    above_stop = span - 1 - stop_depth
    above_stop -= not_live.size - int(not_live.searchsorted(stop_depth, side="right"))
    if max(0, above_stop) < moves:
        moves, cut_by = max(0, above_stop), "stop"
    if move_limit is not None and move_limit < moves:
        moves, cut_by = move_limit, "limit"

    def depth_of_live(rank: int) -> int:
        return rank + int(below.searchsorted(rank, side="right"))

    sources, targets, unused = _NONE, holes[:moves], holes[moves:]
    top = max(int(kept[-1]) if kept.size else -1, int(targets[-1]) if moves else -1)
    if moves < live:
        top = max(top, depth_of_live(live - moves - 1))
    if moves:
        low = depth_of_live(live - moves)
        sources = _live_above(not_live[not_live.searchsorted(low) :], low, span)
        if sources_stay:
            top = max(top, int(sources[0]))
    remaining = unused[: unused.searchsorted(top)]
    absorbed = unused.size - remaining.size
    if not sources_stay and moves:
        remaining = np.concatenate((remaining, sources[sources < top]))
        remaining.sort()
    return MovePlan(sources, targets, remaining, top + 1, absorbed, cut_by)


def _live_above(holes: Depths, low: int, span: int) -> Depths:
    """The depths in ``[low, span)`` that are not in ``holes``, topmost first."""
    top = span - 1
    if holes.size == 0:
        return np.arange(top, low - 1, -1)
    is_live = np.ones(span - low, np.bool_)
    is_live[top - holes] = False
    depths = is_live.nonzero()[0]
    return np.subtract(top, depths, out=depths)

"""The planner against the page-by-page walk that it stands for."""

from collections.abc import Sequence
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvdefrag.allocator.plan import MovePlan, moves_to_reach, plan_moves

LIVE, HOLE, KEPT, VACATED, STAYS = "live", "hole", "kept", "vacated", "stays"


def walk(
    holes: list[int],
    span: int,
    move_limit: int | None = None,
    kept: Sequence[int] = (),
    stop_depth: int = -1,
    sources_stay: bool = False,
) -> MovePlan:
    """One page at a time: the topmost live page into the lowest hole, until they cross."""
    pages = [HOLE if d in holes else KEPT if d in kept else LIVE for d in range(span)]
    sources, targets, cut_by = [], [], ""
    for source in reversed(range(span)):
        if pages[source] != LIVE:
            continue
        target = pages.index(HOLE) if HOLE in pages else span
        if target > source:
            break
        if source <= stop_depth:
            cut_by = "stop"
            break
        if len(sources) == move_limit:
            cut_by = "limit"
            break
        sources.append(source)
        targets.append(target)
        pages[target] = LIVE
        pages[source] = STAYS if sources_stay else VACATED
    absorbed = 0
    while pages and pages[-1] in (HOLE, VACATED):
        absorbed += pages.pop() == HOLE
    remaining = [depth for depth, page in enumerate(pages) if page in (HOLE, VACATED)]
    return MovePlan(sources, targets, remaining, len(pages), absorbed, cut_by)


def plan(
    holes: list[int],
    span: int,
    move_limit: int | None = None,
    kept: Sequence[int] = (),
    stop_depth: int = -1,
    sources_stay: bool = False,
) -> MovePlan:
    """The plan, its arrays as lists."""
    found = plan_moves(
        np.array(holes, np.int64), span, move_limit,
        np.array(kept, np.int64), stop_depth, sources_stay,
    )  # fmt: skip
    return MovePlan(*(part.tolist() if isinstance(part, np.ndarray) else part for part in found))


@st.composite
def obstructed_bands(draw: st.DrawFn) -> tuple[Any, ...]:
    pages = draw(st.lists(st.sampled_from([LIVE, LIVE, HOLE, HOLE, KEPT]), min_size=1, max_size=40))
    holes, kept = ([d for d, page in enumerate(pages) if page == what] for what in (HOLE, KEPT))
    move_limit = draw(st.none() | st.integers(0, 20))
    stop_depth = draw(st.integers(-1, len(pages) - 1))
    return holes, len(pages), move_limit, kept, stop_depth, draw(st.booleans())


@st.composite
def bands(draw: st.DrawFn, most: int = 60) -> tuple[list[int], int]:
    is_hole = draw(st.lists(st.booleans(), min_size=1, max_size=most))
    return [depth for depth, hole in enumerate(is_hole) if hole], len(is_hole)


@given(bands())
def test_full_pack_is_the_walk(band):
    assert plan(*band) == walk(*band, None)


@given(obstructed_bands())
def test_plan_around_obstacles_is_the_walk(band):
    assert plan(*band) == walk(*band)


def test_large_obstructed_band_is_the_walk():
    rng = np.random.default_rng(6)
    pages = rng.choice(3, 2048, p=[0.5, 0.4, 0.1])
    holes, kept = (np.flatnonzero(pages == what).tolist() for what in (1, 2))
    for move_limit, stop_depth in ((None, -1), (100, -1), (None, 1800), (150, 1800)):
        for stay in (False, True):
            band = (holes, 2048, move_limit, kept, stop_depth, stay)
            assert plan(*band) == walk(*band)


@given(bands(), st.integers(0, 40))
def test_limited_plan_is_the_walk(band, move_limit):
    assert plan(*band, move_limit) == walk(*band, move_limit)


@pytest.mark.parametrize("move_limit", [None, 0, 1, 700, 5000])
def test_large_band_is_the_walk(move_limit):
    rng = np.random.default_rng(6)
    holes = np.flatnonzero(rng.random(4096) < 0.4).tolist()
    assert plan(holes, 4096, move_limit) == walk(holes, 4096, move_limit)


@given(bands(most=40), st.data())
def test_moves_to_reach_is_the_shortest_walk(band, data):
    holes, span = band
    span_limit = data.draw(st.integers(span - len(holes), span + 3))
    moves = moves_to_reach(np.array(holes, np.int64), span, span_limit)
    enough = (count for count in range(span + 1) if walk(*band, count).span_after <= span_limit)
    assert moves == next(enough)


@given(bands(), st.none() | st.integers(0, 40))
def test_inputs_stay_as_they_are(band, move_limit):
    holes = np.array(band[0], np.int64)
    holes.flags.writeable = False
    plan_moves(holes, band[1], move_limit)
    moves_to_reach(holes, band[1], band[1] - holes.size)
    assert holes.tolist() == band[0]


@given(bands(), st.none() | st.integers(0, 40))
def test_same_input_same_plan(band, move_limit):
    assert plan(*band, move_limit) == plan(*band, move_limit)


@given(bands(), st.none() | st.integers(0, 40))
def test_plan_accounts_for_every_hole(band, move_limit):
    found = plan(*band, move_limit)
    assert found.targets + found.remaining == band[0][: len(band[0]) - found.absorbed]
    assert found.span_after == band[1] - len(found.sources) - found.absorbed


def test_arrays_are_int64():
    parts = plan_moves(np.array([0, 2, 5]), 9)[:3]
    assert [part.dtype for part in parts] == [np.int64] * 3


def test_no_holes_no_moves():
    assert plan([], 5) == MovePlan([], [], [], 5, 0, "")


def test_hole_between_sources_is_no_target():
    assert plan([2, 4, 11], 13) == MovePlan([12, 10], [2, 4], [], 10, 1, "")


# Quadratic work takes 4 and 256 times as long.
@pytest.mark.parametrize(("small", "large", "ratio"), [(16_384, 32_768, 3), (4_096, 65_536, 24)])
def test_plan_time_is_linear(small, large, ratio):  # fault 6
    def run(span: int) -> float:
        holes = np.arange(1, span, 2)
        started = perf_counter()
        for _ in range(5):
            plan_moves(holes, span)
        return perf_counter() - started

    # The two sizes in turn, so that a busy machine slows both.
    rounds = [(run(small), run(large)) for _ in range(20)]
    short, long = (median(times) for times in zip(*rounds, strict=True))
    assert long < ratio * short

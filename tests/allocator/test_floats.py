"""Pools between others: they grow to both sides, and make way with as few moves as can be."""

from time import perf_counter

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from kvdefrag import Arena, FlushResult, OutOfPages, PoolSpec
from kvdefrag.allocator.plan import plan_withdrawal

from .rig import Rig, by_backend, state_of


def chain(backend: str, num_pages: int, **options: int) -> Rig:
    """A grows up, F floats, B grows down, all in pages of 8 bytes."""
    specs = PoolSpec("A", 8), PoolSpec("F", 8, grows="float"), PoolSpec("B", 8, grows="down")
    return Rig(backend, *specs, total_bytes=8 * num_pages, **options)


def reported(backend: str) -> Rig:
    """A ends at page 3, F spans [5, 9) with a hole at 6, B starts at 12."""
    rig = chain(backend, 13)
    rig.alloc(2, "A")
    rig.alloc(1, "B")
    rig.alloc(4, "F")
    assert rig.pages(rig.live["F"], "F") == [5, 6, 7, 8]
    rig.free([2], "F")
    return rig


def test_it_makes_way_for_a_neighbour(backend):  # fault 3
    rig = reported(backend)
    assert rig.arena["A"].available() == 6
    before = rig.arena.stats().moves
    assert rig.pages(rig.alloc(3, "A"), "A") == [3, 4, 5]
    assert rig.pages(rig.live["F"], "F") == [6, 7, 8]
    assert rig.arena.stats().moves == before + 1
    assert rig.span("F") == 3


@pytest.mark.parametrize("urgent", [False, True])
def test_a_closed_gate_keeps_it_where_it_is(backend, urgent):  # fault 3
    rig = reported(backend)
    with rig.arena.block_moves("transfer"):
        assert rig.arena["A"].available() == 2
        before = state_of(rig.arena)
        assert rig.arena["A"].try_alloc(3) is None
        assert not rig.arena.fits({"A": 3})
        with pytest.raises(OutOfPages):
            rig.arena.alloc_many({"A": 3, "B": 1})
        assert state_of(rig.arena) == before
        assert rig.arena["F"].flush(urgent=urgent) == FlushResult(0, 0, 0, 0, "blocked")
        assert rig.arena.flush(urgent=urgent)["F"] == FlushResult(0, 0, 0, 0, "blocked")
        assert rig.pages(rig.live["F"], "F") == [5, 7, 8]
    assert rig.arena["A"].available() == 6
    rig.alloc(3, "A")


def test_a_hole_between_sources_is_not_filled():  # fault 6
    # Pages 1 to 12 with holes 2, 4 and 11; from 9 on it has to go, and 0 is free.
    plan = plan_withdrawal(np.array([1, 3, 10]), 12, -1, 8)
    assert plan.sources.tolist() == [11, 9, 8]
    assert plan.targets.tolist() == [1, 3, -1]
    assert (plan.first_after, plan.span_after) == (-1, 8)


@given(st.lists(st.booleans(), min_size=1, max_size=24), st.integers(-10, 30), st.integers(0, 40))
def test_withdrawal_moves_what_is_outside_and_nothing_else(live, first, width):
    depths = [depth for depth, is_live in enumerate(live) if is_live]
    holes = [depth for depth, is_live in enumerate(live) if not is_live]
    end = first + width
    assume(width >= len(depths))
    plan = plan_withdrawal(np.array(holes, np.int64), len(live), first, end)
    outside = {depth for depth in depths if not first <= depth < end}
    targets = plan.targets.tolist()
    assert set(plan.sources.tolist()) == outside
    assert len(plan.sources) == len(outside) == len(set(targets)) == len(targets)
    assert all(first <= target < end and target not in depths for target in targets)
    after = sorted((set(depths) - outside) | set(targets))
    if after:
        assert (plan.first_after, plan.span_after) == (after[0], after[-1] + 1)
    else:
        assert plan.first_after == plan.span_after
    inside = range(plan.first_after, plan.span_after)
    assert plan.remaining.tolist() == [depth for depth in inside if depth not in after]
    left = [depth for depth in holes if depth not in targets and depth not in inside]
    assert plan.absorbed == len(left)


def test_a_full_band_shifts_by_a_page_in_one_move(backend):
    pages = by_backend(backend, 8192, 300)
    arena = Arena(8 * (pages + 4), chain_specs(), device="cpu", backend=backend)
    arena["A"].alloc(1)
    arena["F"].alloc(pages)
    low, high = arena._shared.capacity.gap(arena["F"]._band)
    room_below = arena["F"]._band.geometry.edges(pages)[0] // 8 - low // 8
    assert (low, high) == (16, 8 * (pages + 4))
    arena["A"].alloc(room_below + 1)
    assert arena.stats().moves == 1
    arena.check(deep=True)


def chain_specs() -> list[PoolSpec]:
    return [PoolSpec("A", 8), PoolSpec("F", 8, grows="float"), PoolSpec("B", 8, grows="down")]


def test_an_empty_float_takes_no_room_and_blocks_nobody(backend):
    rig = chain(backend, 20)
    assert [rig.arena[name].available() for name in "AFB"] == [19, 19, 19]
    rig.alloc(12, "F")
    rig.free(list(rig.live["F"]), "F")
    assert rig.arena["A"].available() == 19
    rig.alloc(19, "A")
    assert rig.arena["F"].available() == 0


def test_from_empty_it_leaves_room_to_both_sides(backend):
    rig = chain(backend, 21)
    rig.alloc(2, "A")
    rig.alloc(2, "B")
    assert rig.pages(rig.alloc(4, "F"), "F") == [9, 10, 11, 12]
    rig.alloc(6, "A")
    rig.alloc(6, "B")
    assert rig.arena.stats().moves == 0


def test_it_grows_to_both_sides_in_one_launch(backend):
    rig = chain(backend, 21)
    rig.alloc(2, "A")
    rig.alloc(4, "F")
    launches = rig.arena.stats().launches
    ids = rig.arena["F"].alloc(14)
    assert rig.arena.stats().launches == launches + 1
    rig.got("F", ids)
    rig.verify()
    assert sorted(rig.pages(rig.live["F"], "F")) == list(range(3, 21))
    assert rig.arena["F"].available() == 0


def test_holes_come_first(backend):
    rig = chain(backend, 30)
    ids = rig.alloc(8, "F")
    holes = rig.pages(ids[2:4], "F")
    rig.free(ids[2:4], "F")
    assert sorted(rig.pages(rig.alloc(2, "F"), "F")) == sorted(holes)
    assert rig.span("F") == 8


def test_a_full_pack_leaves_no_hole_on_either_side(backend):
    rig = chain(backend, 40)
    rig.alloc(3, "A")
    ids = rig.alloc(16, "F")
    rig.free(ids[[0, 1, 5, 6, 9, 15]], "F")
    result = rig.flush("F", urgent=True)
    assert rig.span("F") == 10
    assert result.moves == 3  # the outer holes cost none
    assert result.absorbed == 6 - 3


def test_floats_give_way_one_after_the_other(backend):
    specs = [
        PoolSpec("A", 8),
        PoolSpec("F", 8, grows="float"),
        PoolSpec("G", 16, grows="float"),
        PoolSpec("B", 8, grows="down"),
    ]
    rig = Rig(backend, *specs, total_bytes=8 * 40)
    rig.alloc(6, "F")
    rig.alloc(4, "G")
    rig.alloc(2, "B")
    available = rig.arena["A"].available()
    ids = rig.alloc(available, "A")
    assert len(ids) == available == 40 - 2 - 6 - 8 - 2
    assert rig.arena["A"].available() == 0
    rig.free(ids, "A")
    rig.alloc(rig.arena["B"].available(), "B")
    assert rig.arena["F"].available() == rig.arena["G"].available() == 0


def test_repair_finds_the_span_of_a_float(backend):
    rig = chain(backend, 40)
    rig.alloc(5, "A")
    ids = rig.alloc(9, "F")
    rig.free(ids[3:5], "F")
    band = rig.arena["F"]._band
    origin, span = band.geometry.origin, band.span
    band.geometry.origin, band.span = origin + 2, 3
    rig.arena.repair()
    assert (band.geometry.origin, band.span) == (origin, span)
    rig.verify()


# Quadratic work takes 4 times as long.
def test_withdrawal_time_is_linear():  # fault 6
    def run(span: int) -> float:
        holes = np.arange(1, span, 2)
        started = perf_counter()
        for _ in range(5):
            plan_withdrawal(holes, span, span // 2, span + span // 2)
        return perf_counter() - started

    rounds = [(run(16_384), run(32_768)) for _ in range(20)]
    short, long = (min(times) for times in zip(*rounds, strict=True))
    assert long < 3 * short


def test_lists_of_ids_come_in_the_order_asked(backend):
    rig = chain(backend, 20)
    found = rig.arena.alloc_many({"B": 1, "F": 2, "A": 1})
    assert list(found) == ["B", "F", "A"]
    assert all(isinstance(ids, torch.Tensor) for ids in found.values())

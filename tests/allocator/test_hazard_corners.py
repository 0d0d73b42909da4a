"""Corners that random calls seldom reach, in a world that judges every step."""

import pytest
import torch

from kvdefrag import Arena, PoolSpec, UsageError
from kvdefrag.allocator.testing import ManualFence

from .formula import Layout
from .world import World


@pytest.fixture
def world(backend):
    """Two pools of 11 pages in a buffer of 12; ids 1 to 6 of "a" stand at depths 0 to 5."""
    world = World(Layout(12 * 8, (PoolSpec("a", 8), PoolSpec("b", 8, grows="down"))), backend)
    world.alloc("a", 6)
    return world


def ends_well(world: World) -> None:
    world.check()
    world.alloc("b", world.available("b"))
    world.check()
    world.drain()


def test_an_urgent_flush_waits_before_it_absorbs_a_written_hole(world):
    world.in_flight.begin({}, {"a": [6]})
    world.free("a", [6])
    world.flush("a", urgent=True)
    assert not world.in_flight.outstanding
    ends_well(world)


def test_an_urgent_flush_waits_before_pending_pages_become_holes(world):
    world.in_flight.begin({"a": [5, 6]}, {})
    world.free("a", [1, 2])
    world.flush("a")
    world.block()
    world.alloc("b", 1)
    world.flush("a", urgent=True)
    world.alloc("a", world.available("a"))
    ends_well(world)


def test_a_pending_page_below_others_is_no_hole_before_its_fence(world):
    world.in_flight.begin({"a": [6]}, {})
    world.free("a", [1])
    world.flush("a")
    world.in_flight.begin({}, {})
    ids = world.alloc("a", 2)
    world.block()
    world.flush("a", urgent=True)
    world.check()
    world.alloc("a", 1)
    assert ids is not None
    ends_well(world)


def test_a_lease_below_the_highest_written_page_hides_no_page_above(world):
    world.free("a", [1])
    world.lease("a", [4])
    world.in_flight.begin({}, {"a": [2, 6]})
    assert world.flush("a")["a"].stopped_by == "forward"
    ends_well(world)


def test_blocks_that_nest_all_count(world):
    world.free("a", [1, 2])
    world.block()
    world.block()
    done = world.flush("a", urgent=True)["a"]
    assert (done.moves, done.stopped_by) == (0, "blocked")
    ends_well(world)


def test_fences_that_end_together_are_all_noticed(world):
    for virtual in (4, 5, 6):
        world.in_flight.begin({}, {"a": [virtual]})
    world.free("a", [1])
    world.drain()


def test_a_clear_waits_for_forwards(world):
    world.in_flight.begin({"a": [1, 2]}, {"a": [6]})
    world.clear()
    assert not world.in_flight.outstanding
    ends_well(world)


def test_a_repair_waits_before_frontiers_retreat(world):
    world.in_flight.begin({}, {"a": [6]})
    world.free("a", [6])
    world.arena.repair()
    ends_well(world)


def test_a_repair_leaves_a_sound_pool_and_its_pending_pages_alone(world):
    world.in_flight.begin({"a": [6]}, {})
    world.free("a", [1])
    world.flush("a")
    world.free("a", [5])
    report = world.arena.repair().pools["a"]
    assert report.violations == ()
    assert (report.after.pending_pages, report.after.span_pages) == (1, 6)
    world.check()
    world.drain()
    ends_well(world)


def test_a_bad_lease_is_named_by_a_check(backend):
    arena = Arena(200, [PoolSpec("a", 8)], device="cpu", backend=backend)
    lease = arena["a"].lease(torch.tensor([7]))
    with pytest.raises(UsageError, match="names an id that was not allocated"):
        arena.check()
    assert arena.check() is None
    lease.release()


def test_a_class_is_no_fence(backend):
    arena = Arena(200, [PoolSpec("a", 8)], device="cpu", backend=backend)
    with pytest.raises(UsageError, match="fence: expected query"):
        arena.forward_launched(ManualFence)


@pytest.mark.parametrize("grows", ["up", "float"])
@pytest.mark.parametrize("row", ["of a live id", "of a free id", "of a page"])
def test_a_row_that_names_a_neighbours_page_is_listed_no_more(backend, grows, row):
    specs = [PoolSpec("a", 16, grows=grows), PoolSpec("b", 16, grows="down")]
    arena = Arena(1024, specs, device="cpu", backend=backend)
    arena["a"].alloc(8)
    page = int(arena["b"].translate(arena["b"].alloc(8)[:1]))
    if row == "of a page":
        arena["a"].physical_to_virtual[page] = 3
    else:
        arena["a"].virtual_to_physical[1 if row == "of a live id" else 40] = page
    found = arena.repair().pools["a"]
    assert page in [entry.page for entry in found.ambiguous]
    assert found.after.span_pages == 8
    assert arena["b"].live_pages == 8
    arena.check(deep=True)

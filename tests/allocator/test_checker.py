"""The checker names every injected fault, with the numbers that disagree (reported fault 14)."""

import pytest

from kvdefrag import CorruptState

from .rig import Rig


@pytest.fixture
def rig(backend) -> Rig:
    """Eight pages, of which 2 and 5 are holes."""
    rig = Rig.of(backend, 9)
    rig.alloc(8)
    rig.free([2, 5])
    return rig


def named(rig: Rig) -> str:
    with pytest.raises(CorruptState) as raised:
        rig.arena.check(deep=True)
    assert str(raised.value).startswith("; ".join(raised.value.violations))
    return str(raised.value)


def test_clean_state_passes(rig):
    assert rig.arena.check(deep=True) is None


def test_two_ids_on_one_page(rig):
    rig.pool.virtual_to_physical[3] = 4
    assert "tables are inverse: pool 'a': v2p[3] is 4, p2v there is 4" in named(rig)


def test_page_of_a_dead_id(rig):
    rig.pool.physical_to_virtual[2] = 2
    assert "p2v[2] is 2, v2p there is -1" in named(rig)


def test_page_id_outside_the_pool(rig):
    rig.pool.virtual_to_physical[3] = 2**40
    assert f"v2p[3] is {2**40}, p2v there is out of range" in named(rig)


def test_live_page_in_the_hole_list(rig):
    rig.pool._band.holes.buffer[1] = 7
    found = named(rig)
    assert "page 7 is in the hole list but bound to id 7" in found
    assert "page 5 is free but in no list" in found


def test_duplicate_in_the_hole_list(rig):
    rig.pool._band.holes.buffer[1] = 2
    assert "lists are clean: pool 'a': 2 is twice in the hole list" in named(rig)


def test_sink_in_the_hole_list(rig):
    rig.pool._band.holes.buffer[0] = 0
    assert "pool 'a': 0 is in the hole list" in named(rig)


def test_negative_id_in_the_free_id_list(rig):
    rig.pool._band.ids.buffer[0] = -1
    assert "pool 'a': -1 is in the free id list" in named(rig)


def test_live_id_in_the_free_id_list(rig):
    rig.pool._band.ids.buffer[0] = 3
    found = named(rig)
    assert "id 3 is live but in the free id list" in found
    assert "id 2 is neither live nor in the free id list" in found


def test_duplicate_in_the_free_id_list(rig):
    rig.pool._band.ids.buffer[0] = 5
    assert "5 is twice in the free id list" in named(rig)


def test_drifted_live_counter(rig):  # fault 13
    rig.pool._band.live += 1
    assert "pool 'a': the live counter says 7, the tables say 6" in named(rig)


def test_drifted_span(rig):
    rig.pool._band.span -= 1
    found = named(rig)
    assert "a span of 7 pages is not 6 live, 2 holes and 0 pending" in found
    assert "page 8 is bound outside the band of 7 pages" in found


@pytest.mark.parametrize("table", ["virtual_to_physical", "physical_to_virtual"])
def test_written_sink_row(rig, table):
    getattr(rig.pool, table)[0] = 6
    assert "the sink rows are" in named(rig)


def test_overlapping_bands(backend):
    rig = Rig.pair(backend, 12)
    rig.alloc(6, "A")
    rig.alloc(4, "B")
    rig.arena["A"]._band.span = 9
    assert "(band of 'A') overlap 64 to 96 (band of 'B')" in named(rig)


def test_deep_finding_does_not_stop_the_arena(rig):
    rig.pool._band.live += 1
    named(rig)
    rig.pool._band.live -= 1
    rig.alloc(2)

"""Reported faults in flushes: what moves where, and what is left. The numbers are the reports'."""

import pytest
import torch

from kvdefrag import FlushResult
from kvdefrag.kernels import bind, copy, gather, rebind, translate

from .rig import Rig

TABLE_KERNELS = (bind, copy, gather, rebind, translate)


def stamps(rig: Rig, page: int) -> bytes:
    return rig.pool.pages[page].numpy().tobytes()


def test_every_second_page_freed(backend):  # fault 1
    rig = Rig.of(backend, 65)
    ids = rig.alloc(64)
    rig.free(ids[::2])
    assert rig.flush(urgent=True) == FlushResult(16, 16 * 8, 16, 0, "")
    assert rig.pages(range(64, 32, -2)) == list(range(1, 32, 2))
    assert rig.pages(range(2, 33, 2)) == list(range(2, 33, 2))
    assert (rig.span(), rig.holes()) == (32, 0)


def test_hole_between_sources_is_absorbed(backend):  # fault 6
    rig = Rig.of(backend, 14)
    rig.alloc(12)
    rig.free([2, 4, 11])
    assert rig.flush(urgent=True) == FlushResult(2, 16, 1, 0, "")
    assert rig.pages([12, 10]) == [2, 4]
    assert rig.span() == 9


@pytest.fixture(params=["flat", "chunked"])
def page_bytes(request, monkeypatch) -> int:
    """Pages of a size whose kernels work in fours: ids, units and chunk words."""
    monkeypatch.setattr(copy, "HOST_BATCH_BYTES", 4 * 48)
    for module in TABLE_KERNELS:
        monkeypatch.setattr(module, "LANES", 4)
    if request.param == "flat":
        monkeypatch.setattr(copy, "FLAT_UNITS", 4)
        return 16
    monkeypatch.setattr(copy, "CHUNKED_FROM_BYTES", 48)
    monkeypatch.setattr(copy, "CHUNK_WORDS", 4)
    return 48


def test_moves_around_the_batch_size(backend, page_bytes):  # fault 9
    launches = set()
    for moves in (1, 3, 4, 5, 8, 9):
        rig = Rig.of(backend, 2 * moves + 1, page_bytes=page_bytes)
        ids = rig.alloc(2 * moves)
        rig.free(ids[:moves])
        before = rig.arena.stats().launches
        rig.arena.flush(urgent=True)
        launches.add(rig.arena.stats().launches - before)
        rig.verify()
        assert rig.pages(ids[moves:].flip(0)) == list(range(1, moves + 1))
    assert len(launches) == 1


@pytest.mark.parametrize(("grows", "source", "target"), [("up", 8, 3), ("down", 1, 6)])
def test_exactly_full(backend, grows, source, target):  # fault 10
    rig = Rig.of(backend, 9, grows)
    rig.alloc(8)
    assert rig.arena["a"].available() == 0
    assert rig.pages([8, 3]) == [source, target]
    rig.free([3])
    assert rig.flush(urgent=True) == FlushResult(1, 8, 0, 0, "")
    assert rig.pages([8]) == [target]
    assert rig.pool.physical_to_virtual[source] == -1
    assert rig.span() == 7


@pytest.mark.parametrize("urgent", [False, True])
def test_no_holes_nothing_happens(backend, urgent):  # fault 12
    rig = Rig.of(backend, 9)
    rig.alloc(8)
    before = rig.arena.stats()
    assert rig.arena["a"].flush(urgent=urgent) == FlushResult()
    assert rig.arena.flush(urgent=urgent) == {"a": FlushResult()}
    assert rig.arena.stats() == before


def test_holes_at_the_frontier_need_no_copy(backend):  # fault 12
    rig = Rig.of(backend, 9)
    rig.alloc(8)
    rig.free(torch.tensor([7, 8]))
    assert rig.flush() == FlushResult(0, 0, 2, 0, "")
    assert rig.span() == 6
    assert rig.arena.stats().host_to_device_copies == 0


@pytest.mark.parametrize("grows", ["up", "down"])
def test_a_number_is_no_address(backend, grows):  # fault 30
    rig = Rig.of(backend, 9, grows)
    rig.alloc(8)
    first, eighth = rig.pages([1, 8])
    stamp = stamps(rig, eighth)
    rig.free([1, 2])
    assert rig.flush().moves == 2
    assert rig.pages([8]) == [first]
    assert stamps(rig, rig.pages([8])[0]) == stamp
    # The engine writes what is free now, so that a kept translation reads something else.
    rig.pool.pages[eighth] = 0
    assert stamps(rig, 8 if grows == "up" else 1) != stamp


def test_layout_version_marks_moves_and_nothing_else(backend):  # fault 30
    rig = Rig.of(backend, 9)
    seen = [rig.arena.layout_version]

    def changed() -> bool:
        seen.append(rig.arena.layout_version)
        return seen[-1] != seen[-2]

    rig.alloc(8)
    rig.free([7, 8])
    rig.pool.translate([1, 2])
    rig.flush()
    rig.arena.prewarm()
    rig.free([1, 2])
    rig.pool.flush(max_moves=0)
    assert not changed()
    rig.flush()
    assert changed()
    rig.flush()
    rig.arena.clear()
    assert not changed()


@pytest.mark.parametrize("grows", ["up", "down"])
def test_budget_of_moves(backend, grows):
    rig = Rig.of(backend, 13, grows)
    ids = rig.alloc(12)
    lowest = rig.pages(ids[:3])
    rig.free(ids[:4])
    assert rig.flush(max_moves=3) == FlushResult(3, 24, 0, 0, "budget")
    assert rig.pages([12, 11, 10]) == lowest
    assert rig.holes() == 1
    assert rig.flush(max_moves=3) == FlushResult(1, 8, 0, 0, "")
    assert rig.span() == 8


def test_budget_of_bytes_rounds_down(backend):
    rig = Rig.of(backend, 13)
    ids = rig.alloc(12)
    rig.free(ids[:4])
    assert rig.flush(max_bytes=23).moves == 2
    assert rig.flush(max_moves=5, max_bytes=8).moves == 1
    assert rig.flush(max_moves=0).stopped_by == "budget"


def test_budget_of_none_still_absorbs(backend):
    rig = Rig.of(backend, 9)
    rig.alloc(8)
    rig.free(torch.tensor([2, 6, 8]))
    assert rig.flush(max_moves=0) == FlushResult(0, 0, 1, 0, "budget")
    assert rig.span() == 7

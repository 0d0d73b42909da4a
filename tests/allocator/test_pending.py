"""Pages that are neither live nor free: how they come back, and when the stream has to wait."""

import itertools

import pytest

from kvdefrag import FlushResult
from kvdefrag.allocator.testing import ManualFence

from .recording import NotedFence, recorded, without_queries
from .rig import Rig

MOVE = ["gather_virtual", "move_pages"]


def reading(rig: Rig, *fences: ManualFence) -> None:
    for fence in fences:
        rig.arena.forward_launched(fence)


def moved_under(backend: str, *fences: ManualFence) -> Rig:
    """Twelve ids; 11 and 12 went to pages 2 and 3 while forwards read them."""
    rig = Rig.of(backend, 17)
    rig.alloc(12)
    rig.free([2, 3])
    reading(rig, *fences)
    assert rig.flush() == FlushResult(2, 16, 0, 2, "")
    return rig


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_pending_until_every_fence_at_the_move_is_done(backend, order):
    fences = [ManualFence() for _ in range(3)]
    rig = moved_under(backend, *fences)
    reading(rig, ManualFence())  # launched after the move: it knows the new places
    for index in order:
        assert rig.flush() == FlushResult(pending=2)
        assert rig.arena.flush() == {"a": FlushResult(pending=2)}
        fences[index].finish()
    assert rig.flush() == FlushResult(0, 0, 2, 0, "")
    assert all(fence.waits == 0 for fence in fences)


def test_batches_that_wait_for_one_fence_all_come_back(backend):
    fence = ManualFence()
    rig = moved_under(backend, fence)
    for freed in (1, 4, 5):
        rig.free([freed])
        reading(rig, fence)
        assert rig.flush().moves == 1
    assert rig.pending() == 5
    assert rig.span() == 12
    fence.finish()
    assert rig.flush() == FlushResult(0, 0, 5, 0, "")
    assert (rig.span(), rig.holes()) == (7, 0)


def test_batches_of_different_fences_come_back_one_by_one(backend):
    first, second = ManualFence(), ManualFence()
    rig = moved_under(backend, first)
    reading(rig, second)
    rig.free([1])
    rig.flush()
    second.finish()
    assert rig.flush().pending == 3  # the second batch was moved under both
    first.finish()
    assert rig.flush() == FlushResult(0, 0, 3, 0, "")


def test_pending_pages_are_no_targets_and_no_sources(backend):
    """Idle flushes again and again while a forward runs: each move goes to a hole."""
    rig = Rig.of(backend, 41)
    rig.alloc(30)
    fence = ManualFence()
    reading(rig, fence)
    vacated: set[int] = set()
    for freed in ([1, 2], [5], [30, 29], [8, 9]):
        before = set(rig.pages(rig.live["a"])) - set(rig.pages(freed))
        rig.free(freed)
        rig.flush()
        after = set(rig.pages(rig.live["a"]))
        vacated |= before - after
        assert not vacated & after
        assert len(vacated) == rig.pending()
    assert rig.span() == 30
    fence.finish()
    rig.flush()
    assert (rig.span(), rig.pending()) == (23, 0)


def test_pending_pages_are_not_handed_out(backend):
    rig = moved_under(backend, ManualFence())
    granted = rig.pages(rig.alloc(4))
    assert granted == [13, 14, 15, 16]
    assert rig.pending() == 2


def test_fence_done_before_the_flush_leaves_nothing_pending(backend):
    rig = Rig.of(backend, 17)
    rig.alloc(12)
    fence = ManualFence()
    rig.arena.forward_launched(fence, {"a": [12]})
    fence.finish()
    rig.free([2])
    assert rig.flush() == FlushResult(1, 8, 0, 0, "")


@pytest.mark.parametrize("pool_flush", [True, False])
def test_urgent_flush_waits_once_a_fence_between_snapshot_and_move(
    backend, monkeypatch, pool_flush
):
    """Once for each distinct fence, be it a forward's, a pending page's or both."""
    log: list[str] = []
    both, running = NotedFence(log, "both"), NotedFence(log, "running")
    rig = moved_under(backend, both)
    rig.arena.forward_launched(running, {"a": [9]})
    rig.arena.forward_launched(running, {"a": [10]})
    rig.free([1])
    log.clear()
    operations = recorded(rig.arena, monkeypatch)
    both.log = running.log = operations
    result = (rig.pool if pool_flush else rig.arena).flush(urgent=True)
    order = without_queries(operations)
    assert order[0] == "read_back"
    assert sorted(order[1:3]) == ["wait both", "wait running"]
    assert order[3:] == ["upload", *MOVE]
    assert (result if pool_flush else result["a"]) == FlushResult(1, 8, 2, 0, "")
    assert rig.arena.stats().fence_waits == 2
    assert rig.arena.stats().forwards_in_flight == 0
    rig.verify()
    assert rig.span() == 9


@pytest.mark.parametrize("need", ["absorbed", "pending"])
def test_urgent_flush_waits_before_any_reuse(backend, need):
    """Also where nothing moves: room that is given back may be written at once."""
    fence = ManualFence()
    rig = moved_under(backend, fence) if need == "pending" else Rig.of(backend, 17)
    if need == "absorbed":
        rig.alloc(12)
        rig.arena.forward_launched(fence, {"a": [12]})
        rig.free([12])
    assert rig.flush(urgent=True).moves == 0
    assert fence.waits == 1
    assert rig.pending() == rig.holes() == 0


def test_urgent_flush_waits_before_a_pending_page_is_a_hole(backend):
    """The next allocation takes holes without a look at any fence."""
    fence = ManualFence()
    rig = moved_under(backend, fence)
    rig.alloc(1)  # on page 13, so that the pending pages below stay in the band
    with rig.arena.block_moves("test"):
        assert rig.flush(urgent=True) == FlushResult(0, 0, 0, 0, "blocked")
    assert (fence.waits, rig.pending(), rig.holes()) == (1, 0, 2)


def test_peak_of_holes_counts_those_that_were_pending(backend):
    fence = ManualFence()
    rig = moved_under(backend, fence)
    rig.alloc(1)  # on page 13
    with rig.pool.lease([1]):
        rig.free([4, 5, 6])
        assert rig.arena.stats().pools["a"].peak_hole_pages == 2
    assert rig.arena.stats().pools["a"].peak_hole_pages == 3
    with rig.arena.block_moves("test"):
        rig.flush(urgent=True)
    assert rig.arena.stats().pools["a"].peak_hole_pages == rig.holes() == 5


def test_urgent_flush_does_not_wait_for_what_is_done(backend):
    done, unused = ManualFence(), ManualFence()
    rig = moved_under(backend, done)
    done.finish()
    rig.free([1])
    assert rig.flush(urgent=True) == FlushResult(1, 8, 2, 0, "")
    reading(rig, unused)
    assert rig.flush(urgent=True) == FlushResult()
    assert (done.waits, unused.waits, rig.arena.stats().fence_waits) == (0, 0, 0)


def test_pages_of_another_pool_are_not_waited_for_again(backend):
    fence = ManualFence()
    rig = Rig.pair(backend, 40)
    for name in "AB":
        rig.alloc(8, name)
        rig.free([1], name)
    reading(rig, fence)
    rig.arena.flush()
    rig.free([2], "A")
    rig.flush("A", urgent=True)
    assert rig.pending("B") == 1
    assert rig.flush("B") == FlushResult(0, 0, 1, 0, "")  # the stream is past the forward
    assert fence.waits == 1


def test_many_small_frees_under_a_lease_are_few_sets():
    """What is pending costs a question and a flush no more, however it was freed."""
    rig = Rig.of("host", 2002)
    ids = rig.pool.alloc(2000)
    leases = [rig.pool.lease([1])]
    for page in range(1, 1501):
        rig.pool.free(ids[page : page + 1])
    assert len(rig.pool._band.hazards.pending) == 2
    leases.append(rig.pool.lease([1901]))
    rig.pool.free(ids[1501:1503])
    rig.pool.free(ids[1503:1505])
    rig.pool.flush()
    rig.pool.free(ids[1505:1506])
    assert len(rig.pool._band.hazards.pending) == 3
    rig.arena.check(deep=True)
    assert (rig.pending(), rig.holes()) == (1505, 0)
    leases[0].release()
    assert (rig.pending(), rig.holes()) == (5, 1500)
    assert rig.pool.flush().stopped_by == "lease"
    leases[1].release()
    rig.pool.flush()
    rig.arena.check(deep=True)
    assert rig.span() == rig.pool.live_pages == 495


def test_set_grows_after_a_flush_has_seen_it(backend):
    rig = Rig.of(backend, 17)
    rig.alloc(12)
    rig.free([2, 3])
    with rig.pool.lease([1]):
        rig.free([12])
        assert rig.flush(max_moves=1).moves == 1
        assert rig.pages([11]) == [2]
        rig.free([10])
        assert rig.flush() == FlushResult(1, 8, 0, 2, "")
        assert rig.pages([9]) == [3]
    rig.flush()
    assert rig.span() == 8

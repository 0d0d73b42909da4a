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


def ladder(backend: str, fence: ManualFence, holes: int, gap: int) -> Rig:
    """A: two pending pages, ``holes`` holes; ``gap`` pages; B: two holes, of which one is inside.

    A holds pages 1 to 12, B is as large as that leaves room for: A can have ``holes + gap + 4``.
    """
    rig = Rig.pair(backend, 13 + gap + 6)
    rig.alloc(12, "A")
    rig.free([2, 3], "A")
    reading(rig, fence)
    assert rig.flush("A").pending == 2
    rig.alloc(6, "B")
    rig.free([2, 6], "B")
    rig.free([4, 5][:holes], "A")
    return rig


@pytest.mark.parametrize(
    ("asked", "steps"),
    [
        (2, ["bind"]),
        (3, ["bind"]),
        (5, ["wait", "assign", "bind"]),
        (6, ["read_back", "wait", "upload", "assign", "assign", "bind"]),
        (7, ["read_back", "wait", "upload", *MOVE, "assign", "bind"]),
    ],
)
@pytest.mark.parametrize("is_done", [False, True])
def test_each_step_of_the_ladder_only_if_needed(backend, monkeypatch, asked, steps, is_done):
    """Own holes (2), the gap (1), own pending (2), the neighbour (2): one absorbed, one by a move.

    The hole that is left inside the neighbour goes back into its list (the first "assign" of 6).
    Whether the fence is done changes the work, never the answer.
    """
    fence = NotedFence([])
    rig = ladder(backend, fence, holes=2, gap=1)
    assert rig.arena["A"].available() == 7
    if is_done:
        fence.finish()
    before = rig.arena.stats()
    fence.log = log = recorded(rig.arena, monkeypatch)
    ids = rig.arena["A"].alloc(asked)
    order = without_queries(log)
    after = rig.arena.stats()
    assert order == [step for step in steps if step != "wait" or not is_done]
    copies = after.device_to_host_copies - before.device_to_host_copies
    assert copies == (1 if asked > 5 else 0)
    assert rig.pending("A") == (2 if asked <= 3 else 0)
    monkeypatch.undo()
    rig.got("A", ids)
    rig.verify()


def test_ladder_refuses_what_is_not_there(backend):
    fence = ManualFence()
    rig = ladder(backend, fence, holes=2, gap=1)
    assert rig.arena["A"].try_alloc(8) is None
    assert (fence.waits, rig.pending("A")) == (0, 2)
    rig.alloc(7, "A")
    assert rig.arena["A"].available() == rig.arena["B"].available() == 0


def test_flush_for_the_neighbour_waits_for_its_writes(backend):
    """A page of B that a forward still writes moves for A, behind the forward."""
    rig = Rig.pair(backend, 14)
    rig.alloc(6, "A")
    ids = rig.alloc(6, "B")
    pool = rig.arena["B"]
    (place,) = rig.pages(ids[5:], "B")

    def write() -> None:
        pool.pages[place] = 0xAB

    fence = ManualFence(write)
    rig.arena.forward_launched(fence, {"B": ids[5:]})
    rig.free([1], "B")
    assert rig.arena["A"].alloc(2).tolist() == [7, 8]
    assert fence.waits == 1
    assert rig.pages(ids[5:], "B") == [13]
    assert (pool.pages[13] == 0xAB).all()


def test_alloc_many_takes_pending_pages_of_both(backend):
    rig = Rig.pair(backend, 21)
    fence = ManualFence()
    for name in "AB":
        rig.alloc(10, name)
        rig.free([1, 2], name)
    reading(rig, fence)
    rig.arena.flush()
    assert rig.arena.fits({"A": 2, "B": 2})
    granted = rig.arena.alloc_many({"A": 2, "B": 2})
    for name, ids in granted.items():
        rig.got(name, ids)
    rig.verify()
    assert rig.pending("A") == rig.pending("B") == 0
    assert fence.waits == 1


def test_pages_whose_fences_are_done_go_first(backend):
    """No wait for a running forward where what others left is enough."""
    ended, running = ManualFence(), ManualFence()
    rig = moved_under(backend, ended)
    rig.free([1])
    assert rig.flush().pending == 3
    rig.alloc(4)
    reading(rig, running)
    rig.free([4])
    assert rig.flush().pending == 4
    ended.finish()
    rig.alloc(3)
    assert (running.waits, rig.pending()) == (0, 1)
    rig.alloc(1)
    assert (running.waits, ended.waits, rig.pending()) == (1, 0, 0)

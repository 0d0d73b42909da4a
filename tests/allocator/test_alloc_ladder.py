"""What an allocation does to be granted: each step only if the one before was not enough."""

import pytest

from kvdefrag.allocator.testing import ManualFence

from .recording import NotedFence, recorded, without_queries
from .rig import Rig

MOVE = ["gather_virtual", "move_pages"]


def ladder(backend: str, fence: ManualFence, holes: int, gap: int) -> Rig:
    """A: two pending pages, ``holes`` holes; ``gap`` pages; B: two holes, of which one is inside.

    A holds pages 1 to 12, B is as large as that leaves room for: A can have ``holes + gap + 4``.
    """
    rig = Rig.pair(backend, 13 + gap + 6)
    rig.alloc(12, "A")
    rig.free([2, 3], "A")
    rig.arena.forward_launched(fence)
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


def test_alloc_many_of_what_is_there_binds_and_no_more(backend, monkeypatch):
    fence = ManualFence()
    rig = ladder(backend, fence, holes=2, gap=1)
    fence.finish()
    log = recorded(rig.arena, monkeypatch)
    rig.arena.alloc_many({"A": 3, "B": 2})
    assert log == ["bind", "bind"]
    assert rig.pending("A") == 2


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
    rig.arena.forward_launched(fence)
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
    rig = Rig.of(backend, 17)
    rig.alloc(12)
    rig.arena.forward_launched(ended)
    rig.free([1, 2, 3])
    assert rig.flush().pending == 3
    rig.alloc(4)
    rig.arena.forward_launched(running)
    rig.free([4])
    assert rig.flush().pending == 4
    ended.finish()
    rig.alloc(3)
    assert (running.waits, rig.pending()) == (0, 1)
    rig.alloc(1)
    assert (running.waits, ended.waits, rig.pending()) == (1, 0, 0)

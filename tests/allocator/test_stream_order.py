"""What a running forward still has to do, against what the arena does meanwhile.

The work of a fence runs when the forward ends, or where the stream waits for it: a write that has
not happened yet must be in the page wherever it went, and a read must find what was there.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from kvdefrag import FlushResult
from kvdefrag.allocator.testing import ManualFence, page_pattern, wrong_pages

from .rig import Rig

WRITTEN = 0xAB


class Forward:
    """Reads and writes pages at the places that it translated when it was launched."""

    def __init__(self, rig: Rig, name: str, reads: list[int], writes: list[int]) -> None:
        pool = rig.arena[name]
        self.pool, self.reads = pool, torch.tensor(reads, dtype=torch.int64)
        self.read_from, self.write_to = pool.translate(reads), pool.translate(writes)
        self.found: torch.Tensor | None = None
        self.fence = ManualFence(self.run)
        rig.arena.forward_launched(self.fence, {name: writes})

    def run(self) -> None:
        self.found = self.pool.pages[self.read_from].clone()
        self.pool.pages[self.write_to] = WRITTEN

    @property
    def read_right(self) -> bool:
        wanted = page_pattern(self.reads, self.pool.page_bytes)
        return self.found is not None and torch.equal(self.found, wanted)


def eight(backend: str, grows: str = "up", reads: Any = (), writes: Any = ()) -> tuple[Rig, Any]:
    rig = Rig.of(backend, 9, grows)
    rig.alloc(8)
    return rig, Forward(rig, "a", list(reads), list(writes))


def bytes_at(rig: Rig, virtual: int, name: str = "a") -> set[int]:
    return set(rig.arena[name].pages[rig.pages([virtual], name)[0]].tolist())


@pytest.mark.parametrize("grows", ["up", "down"])
def test_write_that_has_not_happened_yet_is_not_lost(backend, grows):  # fault 34
    rig, forward = eight(backend, grows, writes=[8])
    rig.free([1])
    place = rig.pages([8])
    assert rig.pool.flush() == FlushResult(0, 0, 0, 0, "forward")
    assert rig.pages([8]) == place
    assert rig.pool.flush(urgent=True) == FlushResult(1, 8, 0, 0, "")
    assert rig.pages([8]) != place
    assert forward.fence.waits == 1
    assert bytes_at(rig, 8) == {WRITTEN}
    forward.fence.finish()
    assert bytes_at(rig, 8) == {WRITTEN}
    assert wrong_pages(rig.pool, torch.arange(2, 8)) == []


def test_idle_flush_after_the_forward_takes_the_written_bytes(backend):
    rig, forward = eight(backend, writes=[8])
    rig.free([1])
    rig.pool.flush()
    forward.fence.finish()
    assert rig.pool.flush() == FlushResult(1, 8, 0, 0, "")
    assert bytes_at(rig, 8) == {WRITTEN}


@pytest.mark.parametrize("mover", ["arena flush", "alloc", "alloc_many", "budget, then urgent"])
def test_every_urgent_mover_waits_for_the_write(backend, mover):
    rig = Rig.pair(backend, 14)
    rig.alloc(6, "A")
    rig.alloc(6, "B")
    forward = Forward(rig, "B", [3], [6])
    rig.arena["B"].free([1])
    if mover == "arena flush":
        rig.arena.flush(urgent=True)
    elif mover == "alloc":
        rig.arena["A"].alloc(2)
    elif mover == "alloc_many":
        rig.arena.alloc_many({"A": 2, "B": 0})
    else:
        assert rig.arena.flush(max_moves=5)["B"].moves == 0
        rig.arena["B"].flush(urgent=True)
    assert rig.pages([6], "B") == [13]
    assert bytes_at(rig, 6, "B") == {WRITTEN}
    assert forward.read_right


def test_late_write_to_a_freed_page_meets_nobody(backend):
    """An idle flush leaves its place alone; the write comes when others have moved."""
    rig, forward = eight(backend, writes=[3, 8])
    rig.free([2, 3, 8])
    assert rig.flush() == FlushResult(1, 8, 0, 1, "forward")  # 7 to page 2, none to 3
    rig.free([1])
    assert rig.flush() == FlushResult(1, 8, 0, 2, "forward")
    forward.fence.finish()
    rig.verify()
    rig.flush()
    rig.verify()


def test_urgent_flush_fills_a_written_hole_behind_the_write(backend):
    rig, forward = eight(backend, writes=[3])
    rig.free([3])
    assert rig.flush(urgent=True) == FlushResult(1, 8, 0, 0, "")
    assert rig.pages([8]) == [3]
    forward.fence.finish()
    rig.verify()


def test_page_being_read_moves_but_is_not_reused(backend):  # fault 34
    rig, forward = eight(backend, reads=[8, 7])
    rig.free([1, 2])
    assert rig.flush() == FlushResult(2, 16, 0, 2, "")
    assert rig.pages([8, 7]) == [1, 2]
    rig.pool.pages[rig.pool.translate([8, 7])] = WRITTEN  # the next batch goes on there
    for _ in range(3):
        rig.pool.flush()
    assert rig.pending() == 2
    forward.fence.finish()
    assert forward.read_right
    assert rig.pool.flush() == FlushResult(0, 0, 2, 0, "")


@pytest.mark.parametrize("taker", ["own pool", "neighbour", "urgent flush"])
def test_room_of_a_page_being_read_is_taken_behind_the_read(backend, taker):
    rig = Rig.pair(backend, 13)
    rig.alloc(6, "A")
    rig.alloc(4, "B")
    forward = Forward(rig, "A", [5, 6], [])
    rig.free([1, 2], "A")
    assert rig.flush("A").pending == 2
    rig.alloc(2, "B")
    if taker == "urgent flush":
        rig.flush("A", urgent=True)
        rig.alloc(2, "B")
    else:
        rig.alloc(2, "A" if taker == "own pool" else "B")
    assert forward.fence.waits == 1
    assert forward.read_right


def test_two_forwards_write_and_read_across_flushes(backend):
    """The next batch runs behind the first one, whatever moved in between."""
    rig = Rig.of(backend, 17)
    rig.alloc(12)
    first = Forward(rig, "a", [9, 10], [12])
    rig.free([1, 2])
    rig.flush()
    second = Forward(rig, "a", [10, 5], [11])
    rig.free([3, 4])
    rig.flush()
    assert rig.pages([11, 12]) == [11, 12]
    first.fence.finish()
    rig.live["a"].remove(12)
    rig.pool.flush()
    assert bytes_at(rig, 12) == {WRITTEN}
    rig.pool.flush(urgent=True)
    assert second.fence.waits == 1
    assert bytes_at(rig, 11) == bytes_at(rig, 12) == {WRITTEN}
    assert first.read_right
    assert second.read_right
    assert rig.span() == 8


LATER = ("upload", "gather_virtual", "move_pages", "rebind", "assign", "unbind")
WAITING = ("read_back", "bind", "translate", "translate_tokens")


class LateDevice:
    """A device far behind the host: work is done where the host waits for a result, no sooner."""

    def __init__(self, rig: Rig, monkeypatch: Any) -> None:
        self.work: list[Callable[[], Any]] = []
        backend = rig.arena._shared.backend

        def later(operation: Any) -> Any:
            def enqueue(*arguments: Any) -> Any:
                self.work.append(lambda: operation(*arguments))
                return arguments[0].device if operation.__name__ == "upload" else None

            return enqueue

        def waiting(operation: Any) -> Any:
            def run(*arguments: Any) -> Any:
                self.run()
                return operation(*arguments)

            return run

        for names, wrapped in ((LATER, later), (WAITING, waiting)):
            for name in names:
                monkeypatch.setattr(backend, name, wrapped(getattr(backend, name)))

    def run(self) -> None:
        work, self.work = self.work, []
        for step in work:
            step()


@pytest.mark.parametrize("urgent", [True, False])
def test_flushes_back_to_back_both_land_as_planned(monkeypatch, urgent):  # fault 35
    """The second one is planned while the upload of the first has not run yet."""
    rig = Rig.of("triton", 17)
    rig.alloc(12)
    device = LateDevice(rig, monkeypatch)
    for freed, moves in (([1, 2], 2), ([4, 5, 6], 3), ([3], 1)):
        rig.pool.free(torch.tensor(freed))
        assert rig.pool.flush(urgent=urgent).moves == moves
        assert device.work
        rig.live["a"] = [virtual for virtual in rig.live["a"] if virtual not in freed]
    device.run()
    assert rig.pages([12, 11, 10, 9, 8, 7]) == [1, 2, 4, 5, 6, 3]
    rig.verify()


def test_late_device_and_running_forwards(monkeypatch):
    """Places are fixed on the device in order, whenever that is."""
    rig = Rig.pair("triton", 40)
    for name in "AB":
        rig.alloc(12, name)
    device = LateDevice(rig, monkeypatch)
    fence = ManualFence()
    for name in "AB":
        rig.arena[name].free(torch.tensor([1, 2]))
        rig.live[name] = rig.live[name][2:]
    rig.arena.forward_launched(fence, {"A": torch.tensor([11])})
    assert rig.arena.flush()["A"] == FlushResult(1, 8, 0, 1, "forward")
    rig.arena["B"].free(torch.tensor([3]))
    rig.live["B"].remove(3)
    assert rig.arena.flush(urgent=True)["B"].moves == 1
    device.run()
    rig.verify()
    assert [rig.span(name) for name in "AB"] == [10, 9]

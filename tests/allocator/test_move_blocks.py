"""Blocks of moves: every mover obeys, all else goes on, and no answer is stale."""

import random
from statistics import median
from time import perf_counter_ns

import pytest

from kvdefrag import FlushResult, OutOfPages, UsageError
from kvdefrag.allocator.testing import ManualFence

from .rig import Rig, by_backend, state_of
from .watching import watching

BLOCKED_COST = 4
"""A question under a block may cost this much more; a lost cache costs ten times as much."""


def holed(backend: str) -> Rig:
    rig = Rig.of(backend, 17)
    rig.alloc(12)
    rig.free([2, 3])
    return rig


def facing(backend: str) -> Rig:
    """Reported fault 4: A on pages 1..6, B on 8, 9, 11, 13, 15, holes 10, 12, 14; page 7 free."""
    rig = Rig.pair(backend, 16)
    rig.alloc(6, "A")
    rig.alloc(8, "B")
    pool = rig.arena["B"]
    rig.free([int(pool.physical_to_virtual[page]) for page in (10, 12, 14)], "B")
    assert live_pages(rig, "B") == [8, 9, 11, 13, 15]
    return rig


def live_pages(rig: Rig, name: str) -> list[int]:
    return sorted(rig.pages(rig.live[name], name))


MOVERS = {
    "idle": lambda rig: rig.flush(),
    "urgent": lambda rig: rig.flush(urgent=True),
    "budget": lambda rig: rig.flush(max_moves=1),
    "arena idle": lambda rig: rig.arena.flush()["a"],
    "arena urgent": lambda rig: rig.arena.flush(urgent=True)["a"],
}


@pytest.mark.parametrize("mover", MOVERS.values(), ids=MOVERS)
def test_every_flush_obeys(backend, mover):
    rig = holed(backend)
    before, bytes_before = rig.v2p(), rig.arena.buffer.clone()
    block = rig.arena.block_moves("kv transfer")
    assert mover(rig) == FlushResult(0, 0, 0, 0, "blocked")
    assert rig.changed_rows(before) == 0
    assert (rig.arena.buffer == bytes_before).all()
    block.release()
    assert mover(rig).moves > 0
    rig.verify()


def test_capacity_follows_the_block_at_once(backend):  # fault 4
    rig = facing(backend)
    low = rig.arena["A"]
    assert low.available() == 4
    with rig.arena.block_moves("kv transfer"):
        assert low.available() == 1
        assert not rig.arena.fits({"A": 2})
        before = state_of(rig.arena)
        with pytest.raises(OutOfPages) as refusal:
            low.alloc(2)
        assert (refusal.value.asked, refusal.value.available) == (2, 1)
        assert low.try_alloc(4) is None
        with pytest.raises(OutOfPages):
            rig.arena.alloc_many({"A": 2})
        assert state_of(rig.arena) == before
    assert low.available() == 4
    assert rig.arena.fits({"A": 4})
    v2p = rig.v2p()["B"]
    rig.alloc(4, "A")
    moved = (rig.v2p()["B"] != v2p).nonzero().flatten()
    assert {(int(v2p[row]), *rig.pages([row], "B")) for row in moved} == {(8, 14), (9, 12)}
    assert live_pages(rig, "B")[0] == 11
    assert live_pages(rig, "A") == list(range(1, 11))


def test_steady_questions_cost_no_more_under_a_block():  # fault 4
    """2,000 questions, not one launch or copy, and no dearer for a closed gate."""
    rig = facing("host")
    low, block = rig.arena["A"], rig.arena.block_moves("kv transfer")
    before = rig.arena.stats()

    def ask() -> int:
        started = perf_counter_ns()
        for _ in range(100):
            low.available()
        return perf_counter_ns() - started

    under = [ask() for _ in range(10)]
    block.release()
    without = [ask() for _ in range(10)]
    assert median(under) < BLOCKED_COST * median(without)
    after = rig.arena.stats()
    assert after.launches == before.launches
    assert after.device_to_host_copies == before.device_to_host_copies


def test_steady_questions_touch_no_tensor():
    rig = facing("triton")
    with watching(rig.arena) as watch, rig.arena.block_moves("kv transfer"):
        for _ in range(10):
            assert rig.arena["A"].available() == 1
        assert watch.counts() == (0, 0, 0)
        assert watch.allocations == 0


def test_what_is_promised_is_granted(backend):  # fault 5
    """Random calls, the gate toggled at random: a promise is kept, a refusal changes nothing."""
    rng = random.Random(5)
    rig = Rig.pair(backend, 24)
    block = None
    refusals = grants = 0
    for _ in range(by_backend(backend, 150, 15)):
        name = rng.choice("AB")
        pool, live = rig.arena[name], rig.live[name]
        if rng.random() < 0.4:
            block = block.release() if block else rig.arena.block_moves("kv transfer")
        if live and rng.random() < 0.6:
            rig.free(rng.sample(live, rng.randint(1, len(live))), name)
        if rng.random() < 0.3:
            rig.arena.flush(max_moves=rng.randint(0, 2))
        promised = pool.available()
        before = state_of(rig.arena)
        assert pool.try_alloc(promised + 1) is None
        assert state_of(rig.arena) == before
        refusals += block is not None
        asked = rng.randint(0, promised)
        rig.alloc(asked, name)
        grants += asked > 0 and block is not None
    assert refusals > 0
    assert grants > 0


def test_alloc_under_a_block_moves_nothing_and_grants_the_rest(backend):
    rig = facing(backend)
    with rig.arena.block_moves("kv transfer"):
        rig.free([1, 2], "A")
        assert rig.arena["A"].available() == 3
        rig.alloc(3, "A")
        assert rig.arena["B"].available() == 3
        rig.alloc(3, "B")
    assert live_pages(rig, "A") == list(range(1, 8))
    assert live_pages(rig, "B") == list(range(8, 16))
    assert rig.arena.layout_version == 0


def test_own_pending_pages_are_granted_under_a_block(backend):
    rig = Rig.of(backend, 13)
    fence = ManualFence()
    rig.alloc(12)
    rig.free([1, 2])
    rig.arena.forward_launched(fence)
    rig.flush()
    with rig.arena.block_moves("kv transfer"):
        assert rig.pool.available() == 2
        assert rig.pages(rig.alloc(2)) in ([11, 12], [12, 11])
    assert fence.waits == 1


def test_absorption_and_frees_go_on(backend):
    rig = holed(backend)
    with rig.arena.block_moves("kv transfer"):
        rig.free([12, 11])
        assert rig.flush() == FlushResult(0, 0, 2, 0, "blocked")
        rig.free([10])
        assert rig.flush(urgent=True) == FlushResult(0, 0, 1, 0, "blocked")
        assert rig.span() == 9
        assert rig.pages(rig.alloc(3)) == [2, 3, 10]


def test_pending_pages_come_back_under_a_block(backend):
    rig = holed(backend)
    fence = ManualFence()
    rig.arena.forward_launched(fence)
    rig.flush()
    with rig.arena.block_moves("kv transfer"):
        assert rig.flush().pending == 2
        fence.finish()
        assert rig.flush() == FlushResult(0, 0, 2, 0, "")


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_blocks_nest_and_are_counted_by_holder(backend, order):
    rig = holed(backend)
    blocks = [rig.arena.block_moves(reason) for reason in ("transfer", "offload", "transfer")]
    assert rig.arena.stats().move_blocks == {"transfer": 2, "offload": 1}
    assert [block.reason for block in blocks] == ["transfer", "offload", "transfer"]
    for index in order:
        assert rig.flush().stopped_by == "blocked"
        blocks[index].release()
    assert rig.arena.stats().move_blocks == {}
    assert rig.flush().moves == 2


def test_nested_context_managers(backend):
    rig = holed(backend)
    with rig.arena.block_moves("outer"):
        with rig.arena.block_moves("inner") as block:
            assert block.reason == "inner"
        assert rig.flush().stopped_by == "blocked"
    assert rig.flush().moves == 2


def test_block_ends_with_an_exception(backend):
    rig = holed(backend)
    with pytest.raises(KeyError), rig.arena.block_moves("kv transfer"):
        raise KeyError
    assert rig.flush().moves == 2


def test_release_inside_the_context_manager(backend):
    rig = holed(backend)
    with rig.arena.block_moves("kv transfer") as block:
        block.release()
        assert rig.flush().moves == 2
    assert rig.arena.stats().move_blocks == {}


def test_second_release_is_an_error(backend):
    rig = holed(backend)
    block, other = rig.arena.block_moves("transfer"), rig.arena.block_moves("transfer")
    block.release()
    with pytest.raises(UsageError, match="the block for 'transfer' was released before"):
        block.release()
    assert rig.arena.stats().move_blocks == {"transfer": 1}
    other.release()


@pytest.mark.parametrize("reason", ["", None, 3, b"x"])
def test_reason_is_a_word(backend, reason):
    rig = holed(backend)
    with pytest.raises(UsageError, match="reason: expected a non-empty string"):
        rig.arena.block_moves(reason)
    assert rig.flush().moves == 2


def test_block_outlives_a_clear(backend):
    rig = holed(backend)
    with rig.arena.block_moves("kv transfer"):
        rig.arena.clear()
        rig.live["a"].clear()
        rig.alloc(4)
        rig.free([1])
        assert rig.flush().stopped_by == "blocked"
    assert rig.flush().moves == 1

"""Occupancy and heat strip of a replay, beside what the arena itself says."""

import random

import pytest
import torch

from kvdefrag import Arena, PoolSpec
from kvdefrag.perf.replay_watch import CELLS, Watch
from kvdefrag.perf.timed_arena import TimedArena

from .replay_rig import PRESSED, SMALL, report_of


@pytest.fixture
def watched():
    specs = [PoolSpec("full", 8), PoolSpec("state", 24, grows="down")]
    arena = Arena(8 * CELLS, specs, device="cpu")
    watch = Watch(arena, specs, request_count=400)
    timed = TimedArena(arena)
    watch.attach(timed)
    return arena, timed, watch


def test_the_strip_is_the_flush_with_the_most_moves(watched):
    arena, timed, watch = watched
    ids = timed.alloc_many({"full": 200})["full"]
    timed.free("full", ids[:150])
    watch.request_done()
    # 53 pages of 8 bytes are free beyond the band; 20 slots of 24 bytes take 60.
    timed.try_alloc("state", 20)
    assert watch.heat["moves"] == arena.stats().moves > 5
    assert watch.heat["request"] == 1
    assert watch.heat["cell_bytes"] == 8
    before, after = watch.heat["before"], watch.heat["after"]
    assert len(before) == len(after) == CELLS
    # Pages start behind the sink of 24 bytes; a cell is a page of `full`.
    assert [cell["full"] for cell in before] == [0.0] * 153 + [1.0] * 50 + [0.0] * 53
    assert {cell["state"] for cell in before} == {0.0}
    live = arena["full"].physical_to_virtual > 0
    assert [cell["full"] for cell in after] == live.float().tolist()
    assert sum(cell["state"] for cell in after) == 60


@pytest.mark.parametrize("seed", range(5))
def test_no_flush_with_more_moves_is_missed(watched, seed):
    arena, timed, watch = watched
    rng = random.Random(seed)
    moves = []
    for _ in range(30):
        full = timed.try_alloc("full", arena["full"].available())
        order = torch.tensor(rng.sample(range(len(full)), len(full)))
        gone = rng.randint(1, len(full))
        timed.free("full", full[order[:gone]])
        before = arena.stats().moves
        state = timed.try_alloc("state", rng.randint(0, arena["state"].available()))
        moves.append(arena.stats().moves - before)
        timed.free("state", state)
        timed.free("full", full[order[gone:]])
        watch.request_done()
    assert watch.heat["moves"] == max(moves) > 0
    assert watch.heat["request"] == moves.index(max(moves)) != 0


def test_a_page_is_shared_among_the_cells_it_covers():
    specs = [PoolSpec("full", 512), PoolSpec("state", 512, grows="down")]
    arena = Arena(CELLS * 256, specs, device="cpu")
    watch = Watch(arena, specs, request_count=1)
    arena["full"].alloc(1)
    shares = torch.tensor([cell["full"] for cell in watch._strip()])
    assert shares.nonzero().flatten().tolist() == [2, 3]
    assert shares.sum() == 2


def test_samples_follow_the_counts(watched):
    _, timed, watch = watched
    ids = timed.try_alloc("full", 9)
    watch.request_done()
    timed.free("full", ids[:4])
    watch.request_done()
    assert [sample["request"] for sample in watch.occupancy] == [0, 2]
    counts = {"live_pages": 5, "hole_pages": 4, "span_pages": 9}
    assert watch.occupancy[1]["pools"]["full"] == counts


def test_a_report_has_both(tmp_path):
    report = report_of(tmp_path, *PRESSED)
    assert len(report["occupancy"]) == 61
    assert report["occupancy"][-1]["request"] == 60
    for name, pool in report["occupancy"][-1]["pools"].items():
        assert pool["live_pages"] == report["pools"][name]["live_pages"]
        assert pool["span_pages"] == pool["live_pages"] + pool["hole_pages"]
    heat = report["heat"]
    assert len(heat["before"]) == len(heat["after"]) == CELLS
    assert report["moves"] / report["flushes"] <= heat["moves"] < report["moves"]
    assert set(heat["before"][0]) == {"full", "state"}


def test_one_pool_has_no_flush_to_draw(tmp_path):
    report = report_of(tmp_path, *SMALL, "--pool-gib=0.001", "--limit=30", "--verify=off")
    assert report["heat"]["before"] == report["heat"]["after"] == []
    assert len(report["occupancy"]) == 31

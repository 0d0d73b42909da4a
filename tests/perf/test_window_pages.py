"""The window's pool on its own: what a batch gives back, and that nothing stays behind a gap."""

import random
from functools import partial

import numpy as np
import pytest
import torch

from kvdefrag import Arena, PoolSpec
from kvdefrag.perf.content_keys import block_keys, private_keys, window_keys
from kvdefrag.perf.geometries import PoolLayout
from kvdefrag.perf.page_store import PageStore
from kvdefrag.perf.prefix_cache import Node
from kvdefrag.perf.replay import make_specs
from kvdefrag.perf.replay_charts import heat_chart, occupancy_chart
from kvdefrag.perf.replay_watch import CELLS, Watch
from kvdefrag.perf.result_files import REPLAY, ResultFile
from kvdefrag.perf.running_batch import Job, Leaving, RunningBatch
from kvdefrag.perf.timed_arena import TimedArena
from kvdefrag.perf.trace import Request

from .replay_rig import SMALL, report_of

END = Node(block_hash=1, row=0, depth=1, parent=None)


def make_store(private_pages, window_tokens=128, page_size=16, pages=4096):
    layout = PoolLayout(
        pages * 8, 8, page_size, pages, 0, 0,
        window_page_bytes=16, window_pages=pages // 2, window_tokens=window_tokens,
    )  # fmt: skip
    arena = Arena(layout.total_bytes, make_specs(layout), device="cpu")
    return arena, PageStore(arena, layout, 4, private_pages, verify="full", seed=0)


@pytest.mark.parametrize(
    ("state_bytes", "grows"), [(0, ["up", "down"]), (24, ["up", "float", "down"])]
)
def test_the_window_floats_where_states_have_the_end(state_bytes, grows):
    specs = make_specs(PoolLayout(999, 8, 16, 99, state_bytes, 9, 16, 60, 128))
    assert [spec.grows for spec in specs] == grows
    assert [spec.ids_from for spec in specs[:2]] == [None, "full"]
    assert specs[0].page_size == specs[1].page_size


def test_a_page_in_the_window_has_another_key_than_that_of_the_same_tokens():
    keys = np.concatenate((block_keys([0, 1, 2], 32), private_keys(7, 0, 500)))
    assert not np.isin(window_keys(keys), keys).any()
    assert len(np.unique(window_keys(keys))) == len(keys)


@pytest.mark.parametrize("window_tokens", [1, 15, 16, 17, 100, 128, 512])
@pytest.mark.parametrize("page_size", [4, 16])
def test_a_batch_leaves_what_a_look_at_every_token_says(window_tokens, page_size):
    draw = random.Random(window_tokens)
    batch = RunningBatch(6, page_size, window_tokens)
    held, jobs = {}, {}
    for serial in range(1, 7):
        job = Job(Request(0, draw.randrange(1, 512), 10**6, ()))
        tokens = job.private_tokens
        pages = -(-tokens // page_size)
        first = PoolLayout(0, 0, page_size, 0, 0, 0, window_tokens=window_tokens).window_first(
            tokens
        )
        slot = batch.add(job, END, serial, pages, first)
        jobs[slot] = (serial, tokens)
        held[slot] = set(range(first, pages))
    grown = 0
    while grown < 300:
        grown += batch.advance()
        slots = batch.short_of_a_page()
        leaving = batch.leave_window(slots)
        for slot, position, key, leaves in zip(slots.tolist(), *leaving, strict=True):
            serial, tokens = jobs[slot]
            tokens += grown
            needed = {
                token // page_size for token in range(max(0, tokens - window_tokens), tokens - 1)
            }
            passed = held[slot] - needed
            assert passed == ({position} if leaves else set())
            assert position < min(needed, default=tokens // page_size)
            if leaves:
                assert key == private_keys(serial, position, 1)[0]
            held[slot] = needed | {(tokens - 1) // page_size}
        batch.add_pages(slots)


def test_a_gap_in_the_list_keeps_nothing_back():
    arena, store = make_store(private_pages=16)
    slots = np.arange(4)
    keys = np.stack([private_keys(serial, 0, 16) for serial in range(1, 5)])
    for page in range(16):
        assert store.grow(slots, np.full(4, page), keys[:, page])
    # Slot 1 has nothing behind its window; the page of slot 2 was given back before.
    once = Leaving(np.array([3]), keys[2:3, 3], np.array([True]))
    store.leave_window(slots[2:3], once)
    assert arena["window"].live_pages == 63
    positions, leaves = np.array([5, -1, 3, 9]), np.array([True, False, False, True])
    store.leave_window(slots, Leaving(positions, keys[slots, positions], leaves))
    places = arena["window"].translate(store._private_table.take(list(range(4)))).view(4, 16)
    assert (places == 0).nonzero().tolist() == [[0, 5], [2, 3], [3, 9]]
    assert arena["window"].live_pages == store.window.held == 61
    assert arena["full"].live_pages == 64
    arena.check(deep=True)
    assert store.verdict.wrong_pages == 0
    assert store.verdict.pages_checked == 3


def test_a_prompt_of_480k_tokens_in_chunks_holds_one_window_and_one_chunk():
    chunk_pages, window_pages, total = 128, 8, 480_000 // 16
    arena, store = make_store(private_pages=total, pages=total + 2048)
    keys = private_keys(1, 0, total)
    held = []
    for first in range(0, total, chunk_pages):
        chunk = np.arange(first, min(first + chunk_pages, total))
        assert store.grow(np.zeros_like(chunk), chunk, keys[chunk])
        store._stamp_filling()
        held.append(arena["window"].live_pages)
        # All pages behind the window, those given back long ago too: they are gaps by now.
        behind = np.arange(max(0, chunk[-1] + 1 - window_pages))
        leaves = behind >= first - window_pages
        store.leave_window(np.zeros_like(behind), Leaving(behind, keys[behind], leaves))
        assert arena["window"].live_pages == store.window.held == window_pages
    assert store.window.peak == max(held) == window_pages + chunk_pages
    assert set(held[1:-1]) == {window_pages + chunk_pages}
    arena.check(deep=True)
    assert store.verdict.wrong_pages == 0
    assert store.verdict.pages_checked == total - window_pages


@pytest.mark.parametrize("blocks", [4, 40, 937])
def test_the_peak_does_not_know_how_long_a_prompt_is(tmp_path, write_trace, blocks):
    trace = write_trace((list(range(1, blocks + 1)), 256, 100))
    sizes = [*SMALL, "--window-page-bytes=640", "--window-tokens=128", "--pool-gib=0.0022"]
    report = report_of(tmp_path, trace, *sizes)
    assert report["requests"]["finished"] == 1
    # A window at the last full block, one behind the newest token, and the page that it enters.
    assert report["peak_window_pages"] == 8 + 8 + 1
    assert report["pools"]["window"]["live_pages"] == 8


@pytest.mark.parametrize("output_tokens", [4_800, 480_000])
def test_the_peak_does_not_know_how_long_an_answer_is(tmp_path, write_trace, output_tokens):
    trace = write_trace(([], 300, output_tokens))
    sizes = ["--page-bytes=64", "--page-scale=1", "--page-size=256", "--device=cpu"]
    window = ["--window-page-bytes=640", "--window-tokens=500", "--pool-gib=0.0002"]
    report = report_of(tmp_path, trace, *sizes, *window)
    assert report["tokens"]["generated"] == output_tokens
    assert report["peak_window_pages"] == 3
    assert report["pools"]["window"]["live_pages"] == 0


@pytest.mark.parametrize("seed", range(3))
def test_the_strip_is_the_flush_with_the_most_moves_on_three_pools(seed):
    specs = [
        PoolSpec("full", 8),
        PoolSpec("window", 16, grows="float", ids_from="full"),
        PoolSpec("state", 24, grows="down"),
    ]
    arena = Arena(8 * CELLS, specs, device="cpu")
    watch, timed = Watch(arena, specs, request_count=400), TimedArena(arena)
    watch.attach(timed)
    rng = random.Random(seed)
    moves = [0]

    def counted(call):
        before = arena.stats().moves
        found = call()
        moves.append(arena.stats().moves - before)
        return found

    for _ in range(30):
        full = counted(lambda: timed.try_alloc("full", rng.randint(20, 80)))
        half = full[torch.tensor(rng.sample(range(len(full)), len(full) // 2))]
        near = full[: rng.randint(5, 15)]
        counted(partial(timed.bind, arena["window"], near))
        kept = set(half.tolist()) & set(near.tolist())
        timed.free_lent(arena["full"], half, {"window": len(kept)})
        state = counted(lambda: timed.try_alloc("state", arena["state"].available()))
        timed.free("state", state)
        rest = torch.tensor(sorted(set(full.tolist()) - set(half.tolist())))
        timed.free_lent(arena["full"], rest, {"window": len(near) - len(kept)})
        watch.request_done()
    assert watch.heat["moves"] == max(moves) > 3
    assert {pool for cell in watch.heat["before"] for pool in cell} == {"full", "window", "state"}
    assert list(watch.occupancy[-1]["pools"]) == ["full", "window", "state"]


def test_a_bind_that_makes_others_move_is_seen():
    specs = [
        PoolSpec("full", 8),
        PoolSpec("window", 16, grows="float", ids_from="full"),
        PoolSpec("state", 24, grows="down"),
    ]
    arena = Arena(8 * CELLS, specs, device="cpu")
    watch, timed = Watch(arena, specs, request_count=1), TimedArena(arena)
    watch.attach(timed)
    full = timed.try_alloc("full", 100)
    timed.free("full", full[::2])
    timed.try_alloc("state", 50)
    assert arena.stats().moves == 0
    timed.bind(arena["window"], full[1::2][:20])
    assert watch.heat["moves"] == arena.stats().moves > 10
    assert sum(cell.get("window", 0) for cell in watch.heat["before"]) == 0
    assert sum(cell["window"] for cell in watch.heat["after"]) == 40


def test_charts_have_the_window_as_one_more_pool(tmp_path):
    sizes = [*SMALL, "--window-page-bytes=64", "--window-tokens=128", "--state-bytes=6000"]
    report = report_of(tmp_path, *sizes, "--pool-gib=0.001", "--running=16", "--limit=40")
    file = ResultFile(REPLAY, "replay.json", report)
    occupancy, heat = occupancy_chart([file]), heat_chart([file])
    assert {row[2] for row in occupancy.table.rows} == {"full", "window", "state"}
    assert {row[2] for row in heat.table.rows} == {"full", "window", "state"}
    window = [row for row in occupancy.table.rows if row[2] == "window"]
    assert max(row[3] for row in window) <= report["peak_window_pages"]

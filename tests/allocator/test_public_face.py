"""The names that engines build on, and what their answers promise."""

import inspect

import pytest
import torch

import kvdefrag
from kvdefrag import (
    Arena,
    ArenaStats,
    FeasibilityReport,
    FlushResult,
    MultiEndedAllocator,
    PoolSpec,
    PoolStats,
)
from kvdefrag import allocator as allocator_package

from .rig import Rig, state_of

SIGNATURES = {
    Arena: {
        "__init__": "total_bytes, pools, device, backend, debug, buffer, largest_request",
        "feasibility": "total_bytes, pools, largest_request",
        "__getitem__": "name",
        "fits": "page_counts",
        "alloc_many": "page_counts",
        "flush": "urgent, max_moves, max_bytes",
        "forward_launched": "fence, writes, token_writes",
        "block_moves": "reason",
        "repair": "",
        "prewarm": "",
        "check": "deep",
        "clear": "",
        "stats": "",
        "free_group": "page_counts",
    },
    MultiEndedAllocator: {
        "alloc": "page_count",
        "try_alloc": "page_count",
        "free": "virtual_ids, cascade",
        "bind": "virtual_ids",
        "release": "virtual_ids, page_count",
        "release_tokens": "token_ids, page_count",
        "flush": "urgent, max_moves, max_bytes",
        "lease": "virtual_ids",
        "available": "",
        "views": "layout, names",
        "translate": "virtual_ids",
        "translate_tokens": "token_ids, out, out_width",
        "alloc_tokens": "token_count",
        "free_tokens": "token_ids, page_count, cascade",
        "free_token_run": "token_ids, cascade",
        "extend": "prefix_lens, new_lens, last_tokens, page_count, token_count",
        "decode": "last_tokens, page_count",
    },
    PoolSpec: {
        "__init__": "name, page_bytes, page_size, grows, virtual_pages, mover, zero_on_alloc, "
        "ids_from"
    },
}
DEFAULTS = {
    (Arena, "__init__"): {
        "backend": "auto",
        "debug": False,
        "buffer": None,
        "largest_request": None,
    },
    (Arena, "feasibility"): {"largest_request": None},
    (Arena, "flush"): {"urgent": False, "max_moves": None, "max_bytes": None},
    (Arena, "forward_launched"): {"writes": None, "token_writes": None},
    (Arena, "check"): {"deep": False},
    (MultiEndedAllocator, "flush"): {"urgent": False, "max_moves": None, "max_bytes": None},
    (MultiEndedAllocator, "translate_tokens"): {"out": None, "out_width": None},
    (PoolSpec, "__init__"): {"page_size": 1, "virtual_pages": None, "mover": None},
}


@pytest.mark.parametrize("owner", SIGNATURES, ids=lambda owner: owner.__name__)
def test_signatures(owner):
    for method, wanted in SIGNATURES[owner].items():
        found = inspect.signature(getattr(owner, method)).parameters
        assert ", ".join(name for name in found if name != "self") == wanted
        for name, default in DEFAULTS.get((owner, method), {}).items():
            assert found[name].default is default


def test_names_come_from_both_packages():
    for name in allocator_package.__all__:
        assert getattr(kvdefrag, name) is getattr(allocator_package, name)
    assert {*allocator_package.__all__, "__version__"} <= set(kvdefrag.__all__)


def test_fields_of_results():
    assert FlushResult._fields == ("moves", "bytes_moved", "absorbed", "pending", "stopped_by")
    assert FlushResult() == (0, 0, 0, 0, "")
    for record in (ArenaStats, PoolStats, FeasibilityReport):
        for field in record.__dataclass_fields__:
            assert f"``{field}``" in record.__doc__


def test_pool_describes_itself(backend):
    arena = Arena(1000, [PoolSpec("a", 24, 16), PoolSpec("b", 56, grows="down")], "cpu", backend)
    pool = arena["b"]
    assert (pool.name, pool.page_bytes, pool.page_size) == ("b", 56, 1)
    assert (arena["a"].num_pages, pool.num_pages) == (41, 17)
    assert (arena["a"].page_size, pool.live_pages) == (16, 0)
    assert list(arena.pools) == ["a", "b"]
    assert arena.total_bytes == arena.buffer.numel() == 1000


def test_pages_are_views_of_the_buffer(backend):
    engine = torch.zeros(1000, dtype=torch.uint8)
    arena = Arena(1000, [PoolSpec("a", 24)], backend=backend, buffer=engine)
    assert arena.buffer is engine
    assert arena["a"].pages.shape == (41, 24)
    arena["a"].pages[3] = 7
    assert (engine[72:96] == 7).all()
    assert engine.sum() == 7 * 24


def test_tables_of_a_new_pool(backend):
    pool = Rig.of(backend, 5, virtual_pages=7).pool
    assert pool.virtual_to_physical.tolist() == [0, *[-1] * 7]
    assert pool.physical_to_virtual.tolist() == [0, *[-1] * 4]
    tables = (pool.virtual_to_physical, pool.physical_to_virtual)
    assert {table.dtype for table in tables} == {torch.int64}


def test_ids_are_the_callers_own(backend):
    rig = Rig.of(backend, 17)
    first = rig.alloc(8)
    rig.free(first[2:5].clone())
    for count in (1, 2, 3):
        ids = rig.alloc(count)
        before = state_of(rig.arena)
        ids.fill_(-9)
        first.fill_(10**12)
        assert state_of(rig.arena) == before
        rig.verify()


def test_freed_ids_may_be_overwritten(backend):
    rig = Rig.of(backend, 17)
    ids = rig.alloc(8)
    kept = ids.clone()
    rig.free(ids)
    ids.fill_(-1)
    rig.arena.check(deep=True)
    assert sorted(rig.alloc(8).tolist()) == kept.tolist()


def test_zero_pages_launch_nothing(backend):
    rig = Rig.of(backend, 9)
    rig.alloc(3)
    before, state = rig.arena.stats(), state_of(rig.arena)
    nothing = torch.empty(0, dtype=torch.int32)
    answers = [rig.pool.alloc(0), rig.pool.try_alloc(0), *rig.arena.alloc_many({"a": 0}).values()]
    answers += [rig.pool.translate(nothing), rig.pool.translate_tokens(nothing)]
    assert [(ids.dtype, ids.tolist()) for ids in answers] == [(torch.int64, [])] * 5
    rig.pool.free(nothing)
    assert rig.arena.alloc_many({}) == {}
    assert rig.arena.stats().launches == before.launches
    assert state_of(rig.arena) == state


def test_zero_pages_are_granted_when_full(backend):
    rig = Rig.of(backend, 4)
    rig.alloc(3)
    assert rig.arena.fits({"a": 0})
    assert len(rig.alloc(0)) == 0


@pytest.mark.parametrize("live", [0, 5])
def test_prewarm_changes_nothing(backend, live):
    rig = Rig.pair(backend, 20)
    for name in "AB":
        rig.alloc(live, name)
    rig.free(list(range(2, live)), "A")
    before = state_of(rig.arena)
    rig.arena.prewarm()
    assert state_of(rig.arena) == before
    assert rig.arena.check(deep=True) is None


def test_clear_frees_everything(backend):
    rig = Rig.pair(backend, 20)
    made = state_of(rig.arena)
    rig.alloc(8, "A")
    rig.alloc(5, "B")
    rig.free([2, 3, 8], "A")
    rig.arena["B"].free(rig.arena["A"].virtual_to_physical.new_tensor([1, 1]))
    bytes_before = rig.arena.buffer.clone()
    rig.arena.clear()
    cleared = state_of(rig.arena)
    for name in "AB":
        for part in ("v2p", "p2v", "hole list", "id list", "counts"):
            assert cleared[name][part] == made[name][part]
    assert cleared["record"] == made["record"]
    assert torch.equal(rig.arena.buffer, bytes_before)
    assert rig.arena.check(deep=True) is None
    assert rig.arena["A"].available() == 19


def test_urgent_flush_finishes_what_a_budget_left(backend):
    rig = Rig.of(backend, 17)
    ids = rig.alloc(16)
    rig.free(ids[1:8])
    while rig.flush(max_moves=2).stopped_by:
        assert rig.holes() > 0
    assert (rig.span(), rig.holes()) == (9, 0)
    assert rig.flush(urgent=True) == FlushResult()


def test_stats_are_frozen_and_read_nothing(backend):
    rig = Rig.of(backend, 9)
    ids = rig.pool.alloc(8)
    rig.pool.free(ids[1:3])
    stats = rig.arena.stats()
    assert stats.pools["a"] == PoolStats(
        live_pages=6,
        hole_pages=2,
        pending_pages=0,
        span_pages=8,
        peak_hole_pages=2,
        free_ids=2,
        leases=0,
    )
    assert (stats.alloc_calls, stats.free_calls, stats.flush_calls) == (1, 1, 0)
    assert (stats.launches, stats.device_to_host_copies) == (2, 0)
    with pytest.raises(AttributeError):
        stats.moves = 3
    rig.pool.flush(urgent=True)
    assert stats.moves == 0
    assert rig.arena.stats().moves == 2


def test_stats_count_what_flushes_did(backend):
    rig = Rig.of(backend, 9)
    ids = rig.pool.alloc(8)
    assert rig.pool.try_alloc(1) is None
    rig.pool.free(ids[6:])
    rig.pool.flush()
    rig.pool.free(ids[:1])
    rig.pool.flush()
    rig.pool.flush()
    stats = rig.arena.stats()
    assert (stats.alloc_calls, stats.free_calls) == (2, 2)
    assert (stats.flush_calls, stats.flushes_with_moves) == (2, 1)
    assert (stats.moves, stats.bytes_moved, stats.absorbed) == (1, 8, 2)
    assert (stats.layout_version, stats.pools["a"].peak_hole_pages) == (1, 2)
    assert stats.flush_host_ns > 0

"""Pools that share virtual ids: pages come and go here, the ids live and die in their own pool."""

import pytest
import torch

from kvdefrag import Arena, OutOfPages, PoolSpec, UsageError
from kvdefrag.allocator.testing import ManualFence, stamp_pages, wrong_pages

from .rig import state_of
from .sharing import bound, cost, sharing

DTYPES = [torch.int32, torch.int64]


@pytest.mark.parametrize("dtype", DTYPES)
def test_ids_get_pages_and_lose_them(backend, dtype):
    arena = sharing(backend)
    full, window = arena["full"], arena["window"]
    ids = full.alloc(12).to(dtype)
    assert cost(arena, lambda: window.bind(ids[::2])) == (1, 0, 0)
    assert bound(arena, "window") == [1, 3, 5, 7, 9, 11]
    assert window.live_pages == 6
    assert cost(arena, lambda: window.release(ids[:4:2])) == (1, 0, 0)
    assert cost(arena, lambda: window.release(ids[:7], 2)) == (1, 0, 0)
    assert bound(arena, "window") == [9, 11]
    assert bound(arena, "full") == list(range(1, 13))
    assert window.translate(ids).count_nonzero() == 2
    arena.check(deep=True)


def test_tables_are_as_large_as_the_owners(backend):
    specs = PoolSpec("full", 8, virtual_pages=9), PoolSpec("w", 64, grows="down", ids_from="full")
    arena = Arena(6400, specs, "cpu", backend)
    assert arena["w"].virtual_to_physical.shape == (10,)
    assert arena["w"].physical_to_virtual.shape == (100,)
    assert arena["full"].virtual_to_physical.is_contiguous()
    ids = arena["full"].alloc(9)
    arena["w"].bind(ids)
    assert arena["w"].live_pages == 9
    with pytest.raises(OutOfPages):
        arena["full"].alloc(1)


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize("gap", [0, -1, 4])
def test_both_ends_of_a_list_with_gaps_are_released(backend, debug, gap):  # fault 22
    arena = sharing(backend, debug)
    full, window = arena["full"], arena["window"]
    window.bind(full.alloc(12)[4:])
    window.release(torch.tensor([5, gap, gap, 9]), 2)
    assert bound(arena, "window") == [6, 7, 8, 10, 11, 12]
    window.release([6, gap, 7, gap], 2)
    assert bound(arena, "window") == [8, 10, 11, 12]
    assert full.live_pages == 12
    arena.check(deep=True)


def test_a_long_prefill_holds_a_window_of_pages_only(backend):  # fault 22
    """480,000 tokens in chunks of 8,192, 64 a page, through a window of 512."""
    page_size, chunk, window_pages = 64, 128, 8
    chunks = 480_000 // (page_size * chunk) + 1 if backend == "host" else 4
    specs = [
        PoolSpec("full", 8, page_size),
        PoolSpec("window", 8, page_size, grows="down", ids_from="full"),
    ]
    arena = Arena(8 * (chunks + 3) * chunk, specs, "cpu", backend)
    full, window = arena["full"], arena["window"]
    sequence = torch.empty(0, dtype=torch.int64)
    peaks = []
    for _ in range(chunks):
        ids = full.alloc(chunk)
        held = min(window_pages, sequence.numel())
        window.bind(ids)
        peaks.append(window.live_pages)
        sequence = torch.cat((sequence, ids))
        # The engine names all that it ever had: most are gaps.
        window.release(sequence[:-window_pages], held + chunk - window_pages)
        assert window.live_pages == window_pages
    assert max(peaks[1:]) == window_pages + chunk
    arena.check(deep=True)
    full.free(sequence, cascade={"window": window_pages})
    assert (full.live_pages, window.live_pages) == (0, 0)
    arena.check(deep=True)


@pytest.mark.parametrize("debug", [False, True])
def test_cascade_releases_first(backend, debug):
    arena = sharing(backend, debug)
    full, window, linear = (arena[name] for name in ("full", "window", "linear"))
    ids = full.alloc(20)
    window.bind(ids[5:])
    linear.bind(ids[::5])
    if not debug:
        assert cost(arena, lambda: full.free(ids[:4], cascade={"linear": 1})) == (2, 0, 0)
    else:
        full.free(ids[:4], cascade={"linear": 1})
    full.free([6, 5, 7], cascade={"linear": 1, "window": 2})
    full.free_tokens(ids[7:10].int() * 4 + 1, 3, cascade={"window": 3})
    full.free_token_run(torch.arange(44, 54), cascade={"window": 3, "linear": 1})
    assert bound(arena, "full") == list(range(14, 21))
    assert bound(arena, "window") == list(range(14, 21))
    assert bound(arena, "linear") == [16]
    arena.check(deep=True)


def test_a_cascade_that_miscounts_is_found(backend):
    arena = sharing(backend)
    full, window = arena["full"], arena["window"]
    window.bind(full.alloc(8))
    full.free([1, 2, 3], cascade={"window": 2})
    with pytest.raises(UsageError, match=r"page_count: pool 'window'.* 3 pages"):
        arena.check()
    # The third page stays in both: nothing is lost, and nothing has two owners.
    assert bound(arena, "full") == bound(arena, "window") == [3, 4, 5, 6, 7, 8]
    arena.check(deep=True)


@pytest.mark.parametrize("owner_first", [True, False])
@pytest.mark.parametrize("debug", [True, False])
def test_a_group_releases_before_it_frees(backend, owner_first, debug):
    arena = sharing(backend, debug)
    full, window, linear = (arena[name] for name in ("full", "window", "linear"))
    ids = full.alloc(12)
    window.bind(ids)
    linear.bind(ids[6:])

    def group() -> None:
        with arena.free_group():
            if owner_first:
                full.free(ids[:8])
            window.release(ids[:3])
            window.release(torch.tensor([4, -1, 0, 5, 6]), 3)
            window.release_tokens(torch.tensor([28, 29, 32, 35]), 2)
            if not owner_first:
                full.free(ids[:8])
            linear.release([7, 8])

    if debug:
        group()
    else:
        assert cost(arena, group)[0] == 3
    assert bound(arena, "full") == bound(arena, "window") == [9, 10, 11, 12]
    assert bound(arena, "linear") == [9, 10, 11, 12]
    arena.check(deep=True)


def test_seam_inside_a_page_of_both_pools(backend):  # fault 20
    arena = sharing(backend, debug=True, page_size=8)
    full, window = arena["full"], arena["window"]
    tokens = full.alloc_tokens(20)
    window.bind([1, 2, 3])
    with arena.free_group({"full": 3, "window": 3}):
        full.free_tokens(tokens[:12], 2, cascade={"window": 2})
        full.free_tokens(tokens[12:], 2, cascade={"window": 2})
    assert (full.live_pages, window.live_pages) == (0, 0)
    arena.check(deep=True)


def test_pages_are_zero_when_they_are_bound(backend):  # fault 37
    arena = sharing(backend, zero_on_alloc=True)
    full, window = arena["full"], arena["window"]
    arena.buffer.fill_(0xFF)
    ids = full.alloc(6)
    window.bind(ids[:4])
    places = window.translate(ids[:4])
    assert (window.pages[places] == 0).all()
    assert (full.pages[full.translate(ids)] == 0xFF).all()
    window.pages[places] = 7
    window.release(ids[:2])
    window.flush(urgent=True)
    assert (window.pages[window.translate(ids[2:4])] == 7).all()
    window.bind(ids[:2])
    assert (window.pages[window.translate(ids[:2])] == 0).all()
    assert (window.pages[window.translate(ids[2:4])] == 7).all()


def test_moves_under_forwards_and_leases(backend):
    arena = sharing(backend)
    full, linear = arena["full"], arena["linear"]
    ids = full.alloc(10)
    linear.bind(ids)
    stamp_pages(linear, ids)
    linear.release(ids[:4])
    fence = ManualFence()
    arena.forward_launched(fence, writes={"linear": ids[9:]})
    assert linear.flush().stopped_by == "forward"
    fence.finish()
    with linear.lease(ids[8:9]):
        linear.release([9])
        linear.flush(urgent=True)
        assert arena.stats().pools["linear"].pending_pages == 1
        with pytest.raises(UsageError, match="leases hold pages"):
            arena.clear()
    linear.flush(urgent=True)
    left = torch.tensor(bound(arena, "linear"))
    assert left.tolist() == [5, 6, 7, 8, 10]
    assert wrong_pages(linear, left) == []
    arena.check(deep=True)
    arena.clear()
    assert (full.live_pages, linear.live_pages, linear.available()) == (0, 0, 0)
    arena.check(deep=True)


def test_prewarm_changes_nothing(backend):
    arena = sharing(backend, zero_on_alloc=True)
    arena["window"].bind(arena["full"].alloc(5))
    before = state_of(arena)
    arena.prewarm()
    assert state_of(arena) == before


def test_nothing_asked_nothing_launched(backend):
    arena = sharing(backend)
    full, window = arena["full"], arena["window"]
    window.bind(full.alloc(4))
    none = torch.empty(0, dtype=torch.int64)

    def calls() -> None:
        window.bind(none)
        window.bind([])
        window.release(none)
        window.release(none, 0)
        window.release_tokens(none, 0)
        full.free(none, cascade={"window": 0})
        with arena.free_group():
            window.release(none, 0)

    assert cost(arena, calls)[0] == 0
    assert window.live_pages == 4

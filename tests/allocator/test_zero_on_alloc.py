"""Pages that read as zero when they are handed out, and never afterwards."""

import pytest
import torch

from kvdefrag import Arena, PoolSpec, UsageError
from kvdefrag.allocator.testing import ManualFence

from .rig import bytes_of


def filled(backend: str, page_size: int, layers: int, **options) -> Arena:
    """8 pages; a token is 3 bytes in each of ``layers``; every byte of the buffer is 0xFF."""
    page_bytes = 3 * page_size * layers
    buffer = torch.full((9 * page_bytes + 2,), 0xFF, dtype=torch.uint8)
    spec = PoolSpec("a", page_bytes, page_size, zero_on_alloc=True, **options)
    return Arena(buffer.numel(), [spec], "cpu", backend, buffer=buffer)


@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("grows", ["up", "down"])
def test_whole_pages_are_zero(backend, page_size, layers, grows):  # faults 37 and 38
    arena = filled(backend, page_size, layers, grows=grows)
    pool = arena["a"]
    before = arena.stats()
    ids = pool.alloc(2)
    after = arena.stats()
    assert after.launches - before.launches == 2
    assert after.device_to_host_copies == before.device_to_host_copies
    places = pool.translate(ids).tolist()
    pages = pool.pages
    pages[places[0], :5] = 7
    assert (pages[places[0], :5] == 7).all()
    assert (pages[places[0], 5:] == 0).all()
    assert (pages[places[1]] == 0).all()
    others = [page for page in range(9) if page not in places]
    assert (pages[others] == 0xFF).all()
    assert (arena.buffer[9 * pool.page_bytes :] == 0xFF).all()
    pages[places] = 0xEE
    pool.free(ids)
    assert (pages[places] == 0xEE).all()
    again = pool.alloc(2)
    assert sorted(pool.translate(again).tolist()) == sorted(places)
    assert (pages[places] == 0).all()


def test_target_of_a_move_is_not_zeroed(backend):  # fault 37
    arena = filled(backend, 16, 2)
    pool = arena["a"]
    ids = pool.alloc(6)
    pool.pages[pool.translate(ids)] = torch.arange(1, 7, dtype=torch.uint8)[:, None]
    pool.free(ids[:3])
    assert pool.flush(urgent=True).moves == 3
    kept = ids[3:]
    assert (pool.pages[pool.translate(kept)] == torch.tensor([[4], [5], [6]])).all()
    fresh = pool.alloc(3)
    assert (pool.pages[pool.translate(fresh)] == 0).all()
    assert (pool.pages[pool.translate(kept)] == torch.tensor([[4], [5], [6]])).all()


def test_every_way_to_get_a_page(backend):
    arena = filled(backend, 4, 1, virtual_pages=8)
    pool = arena["a"]
    tokens = pool.alloc_tokens(6)
    assert (pool.pages[pool.translate(tokens[::4] // 4)] == 0).all()
    pool.pages[1:3] = 9
    three = torch.tensor([3]), torch.tensor([9]), tokens[2:3]
    grown = pool.extend(*three, 2, 6)
    decoded = pool.decode(grown[-1:].repeat(1), 0)
    assert decoded.tolist() == [int(grown[-1]) + 1]
    fresh = pool.decode(torch.tensor([-1, int(grown[0])]), 1)
    assert (pool.pages[1:3] == 9).all()
    places = pool.translate(torch.cat((grown[1::4] // 4, fresh[:1] // 4)))
    assert sorted(places.tolist()) == [3, 4, 5]
    assert (pool.pages[3:6] == 0).all()
    assert (pool.pages[6:] == 0xFF).all()
    more = arena.alloc_many({"a": 2})["a"]
    assert (pool.pages[pool.translate(more)] == 0).all()


def test_pages_that_a_call_left_out_stay(backend):
    """Refused on the device: only what was bound is written."""
    arena = filled(backend, 4, 1)
    pool = arena["a"]
    pool.decode(torch.tensor([-1]), 1)
    pool.decode(torch.tensor([-1, 4]), 2 - 1)
    pool.decode(torch.tensor([5, 8]), 2)
    with pytest.raises(UsageError):
        arena.check()
    assert (pool.pages[3:] == 0xFF).all()
    arena.check(deep=True)


def test_large_pages(backend):
    buffer = torch.full((5 * 40_000,), 0xFF, dtype=torch.uint8)
    spec = PoolSpec("a", 40_000, zero_on_alloc=True)
    arena = Arena(buffer.numel(), [spec], "cpu", backend, buffer=buffer)
    arena["a"].alloc(3)
    assert (buffer[40_000:160_000] == 0).all()
    assert (buffer[:40_000] == 0xFF).all()
    assert (buffer[160_000:] == 0xFF).all()


def test_prewarm_writes_nothing(backend):
    arena = filled(backend, 16, 1)
    before = bytes_of(arena.buffer)
    arena.prewarm()
    assert bytes_of(arena.buffer) == before


def test_pool_that_cannot():
    with pytest.raises(UsageError, match="zero_on_alloc: pool 'a' has a mover"):
        PoolSpec("a", 8, mover=print, zero_on_alloc=True)
    with pytest.raises(UsageError, match="zero_on_alloc: expected a bool"):
        PoolSpec("a", 8, zero_on_alloc=1)


def test_a_page_that_a_forward_still_writes_is_zeroed_after_that(backend):
    pool = (arena := filled(backend, 16, 1))["a"]
    ids = pool.alloc(3)
    place = pool.translate(ids[:1])
    fence = ManualFence(work=lambda: pool.pages.index_fill_(0, place, 7))
    arena.forward_launched(fence, writes={"a": ids[:1]})
    pool.alloc(1)
    assert fence.waits == 0  # nothing was freed: no hole can be one that it writes
    pool.free(ids[:1])
    again = pool.alloc(1)
    assert fence.waits == 1
    fence.finish()
    assert not pool.pages[pool.translate(again)].any()


def test_a_forward_that_was_launched_later_is_not_waited_for(backend):
    pool = (arena := filled(backend, 16, 1))["a"]
    ids = pool.alloc(3)
    pool.free(ids[:1])
    fence = ManualFence()
    arena.forward_launched(fence, writes={"a": ids[1:2]})
    pool.alloc(1)
    assert fence.waits == 0
    assert arena.stats().forwards_in_flight == 1

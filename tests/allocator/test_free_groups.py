"""Frees that are collected and applied together: one launch a pool, each page once."""

import random

import pytest
import torch

from kvdefrag import PoolSpec, UsageError

from .rig import Rig, by_backend, state_of


def pair(backend: str, page_size: int) -> Rig:
    return Rig.pair(backend, 80, page_size=page_size)


def live_ids(rig: Rig, name: str) -> list[int]:
    rows = rig.arena[name].virtual_to_physical.tolist()
    return [virtual for virtual, page in enumerate(rows) if page > 0]


@pytest.mark.parametrize("debug", [False, True])
def test_seam_inside_a_page(backend, debug):  # fault 20
    rig = Rig.of(backend, 9, page_size=8, debug=debug)
    tokens = rig.pool.alloc_tokens(20)
    before = rig.arena.stats()
    with rig.arena.free_group({"a": 3}):
        rig.pool.free_tokens(tokens[:12], 2)
        rig.pool.free_tokens(tokens[12:], 2)
        assert rig.pool.live_pages == 3
    after = rig.arena.stats()
    assert after.launches - before.launches == 1
    assert rig.pool.live_pages == 0
    assert rig.holes() == 3
    rig.arena.check(deep=True)


def test_all_pools_in_one_launch_each(backend):
    rig = pair(backend, 4)
    a, b = rig.arena["A"], rig.arena["B"]
    tokens, ids = a.alloc_tokens(60), b.alloc(20)
    before = rig.arena.stats()
    with rig.arena.free_group():
        a.free(tokens[::8] // 4)
        b.free(ids[:3])
        a.free_token_run(tokens[4:8])
        b.free(ids[5:7].to(torch.int32))
        a.free_tokens(tokens[[12, 14, 20, 13]], 2)
        b.free([12, 11])
        a.free(tokens[:0])
    after = rig.arena.stats()
    assert after.launches - before.launches == 2
    assert (a.live_pages, b.live_pages) == (15 - 8 - 1 - 2, 20 - 7)
    assert after.free_calls - before.free_calls == 7
    rig.arena.check(deep=True)
    assert live_ids(rig, "B") == [4, 5, *range(8, 11), *range(13, 21)]


def test_random_groups_are_their_distinct_pages(backend):
    for seed in range(by_backend(backend, 60, 4)):
        draw = random.Random(seed)
        rig = pair(backend, 4)
        calls: dict[str, list[tuple[list[int], torch.Tensor]]] = {"A": [], "B": []}
        for name in calls:
            rig.arena[name].alloc(30)
        for _ in range(draw.randrange(1, 6)):
            name = draw.choice("AB")
            page_size = rig.arena[name].page_size
            pages = draw.sample(range(1, 31), draw.randrange(1, 8))
            at = [page * page_size + draw.randrange(page_size) for page in pages * 2]
            draw.shuffle(at)
            dtype = draw.choice([torch.int32, torch.int64])
            calls[name].append((pages, torch.tensor(at, dtype=dtype)))
        freed = {
            name: {page for pages, _ in each for page in pages} for name, each in calls.items()
        }
        with rig.arena.free_group({name: len(pages) for name, pages in freed.items()}):
            for name, each in calls.items():
                for pages, ids in each:
                    rig.arena[name].free_tokens(ids, len(pages))
        for name in "AB":
            assert live_ids(rig, name) == sorted(set(range(1, 31)) - freed[name])
        rig.arena.check(deep=True)


def test_count_of_a_group_that_differs(backend):
    rig = Rig.of(backend, 9, page_size=8)
    tokens = rig.pool.alloc_tokens(60)
    with rig.arena.free_group():
        rig.pool.free_tokens(tokens[:12], 2)
        rig.pool.free_tokens(tokens[12:20], 2)
    with pytest.raises(UsageError, match="3 pages"):
        rig.arena.check()
    rig.arena.check(deep=True)
    assert rig.pool.live_pages == 5


def grouped(rig, *calls, counts=None):
    """Calls of the pool and their arguments, in one group."""
    with rig.arena.free_group(counts):
        for name, *arguments in calls:
            getattr(rig.pool, name)(*arguments)


def test_nothing_is_freed_if_the_group_is_refused(backend):
    rig = Rig.of(backend, 9, page_size=8)
    tokens = rig.pool.alloc_tokens(60)
    free = ("free_tokens", tokens[:12], 2)
    before = state_of(rig.arena)
    with pytest.raises(AttributeError, match="vanish"):
        grouped(rig, free, ("vanish",))
    with rig.arena.free_group(), pytest.raises(UsageError, match="one is open"):
        grouped(rig, free)
    with pytest.raises(UsageError, match=r"page_counts\['a'\]: expected 2 to 2 .* got 3"):
        grouped(rig, free, counts={"a": 3})
    with pytest.raises(UsageError, match=r"page_counts\['a'\]: expected 5 to 8 .* got 10"):
        grouped(rig, *[("free", [1, 2, 3, 4, 5])] * 2)
    with pytest.raises(UsageError, match="nothing of it was freed"):
        grouped(rig, counts={"a": 1})
    with pytest.raises(UsageError, match="no pool 'b'"):
        grouped(rig, counts={"b": 1})
    assert state_of(rig.arena) == before
    rig.pool.free([1])
    assert rig.pool.live_pages == 7


@pytest.mark.parametrize("page_size", [1, 16])
def test_debug_names_the_id_that_is_freed_twice(backend, page_size):  # fault 17
    rig = Rig.of(backend, 9, page_size=page_size, debug=True)
    rig.pool.alloc(5)
    three, token = torch.tensor([3]), torch.tensor([3 * page_size])
    before = state_of(rig.arena)
    with pytest.raises(UsageError, match="3 is there twice"):
        rig.pool.free([3, 3])
    with pytest.raises(UsageError, match=r"id 3 .* twice in this group"):
        grouped(rig, ("free", three), ("free", three))
    with pytest.raises(UsageError, match=r"id 3 .* twice in this group"):
        grouped(rig, ("free_tokens", token, 1), ("free", three))
    with pytest.raises(UsageError, match=r"id 3 .* twice in this group"):
        grouped(rig, ("free", three), ("free_tokens", token, 1))
    with pytest.raises(UsageError, match=r"id 3 .* twice in this group"):
        grouped(rig, ("free_token_run", token), ("free_token_run", token))
    with pytest.raises(UsageError, match="3 is there twice"):
        grouped(rig, ("free", torch.tensor([3, 3])))
    assert state_of(rig.arena) == before
    rig.pool.free([3])
    with pytest.raises(UsageError, match=r"id 3 .* not allocated"):
        rig.pool.free([3])
    with pytest.raises(UsageError, match=r"id 3 .* not allocated"):
        grouped(rig, ("free", three))
    with pytest.raises(UsageError, match="id 3 "):
        rig.pool.free_tokens(token, 1)


def test_debug_checks_the_count_of_a_group(backend):
    rig = Rig.of(backend, 9, page_size=8, debug=True)
    tokens = rig.pool.alloc_tokens(60)
    before = state_of(rig.arena)
    calls = ("free_tokens", tokens[:12], 2), ("free_tokens", tokens[12:20], 2)
    with pytest.raises(UsageError, match=r"expected 3 to 3 .* got 4"):
        grouped(rig, *calls)
    assert state_of(rig.arena) == before
    grouped(rig, *calls, counts={"a": 3})
    assert rig.pool.live_pages == 5


def test_a_group_that_is_opened_again_starts_from_nothing(backend):
    rig = Rig.of(backend, 9)
    ids = rig.pool.alloc(4)
    group = rig.arena.free_group()
    with group:
        rig.pool.free(ids[:1])
    again = rig.pool.alloc(1)
    with group:
        rig.pool.free(ids[1:2])
    with pytest.raises(KeyError), group:  # noqa: PT012
        rig.pool.free(ids[2:])
        raise KeyError
    with group:
        pass
    assert rig.pool.live_pages == 3
    assert rig.pool.translate(again).item() > 0
    rig.arena.check(deep=True)


def test_nothing_is_cleared_under_an_open_group(backend):
    rig = Rig.of(backend, 9)
    ids = rig.pool.alloc(4)
    with rig.arena.free_group():
        rig.pool.free(ids[:2])
        with pytest.raises(UsageError, match="clear: a free group is open"):
            rig.arena.clear()
    assert rig.pool.live_pages == 2


@pytest.mark.parametrize("debug", [False, True])
def test_a_stated_count_allows_pages_that_come_twice(backend, debug):
    rig = Rig.of(backend, 9, page_size=4, debug=debug)
    ids = rig.pool.alloc(4)
    with rig.arena.free_group({"a": 2}):
        rig.pool.free(ids[:2])
        rig.pool.free_token_run(torch.arange(4, 8))
    assert rig.pool.live_pages == 2
    rig.arena.check(deep=True)


@pytest.mark.parametrize("held", [1, 2])
def test_a_refused_cascade_leaves_nothing_in_the_group(backend, held):
    """Neither what its borrower would release nor what the owner would free."""
    specs = (
        PoolSpec("A", 8),
        PoolSpec("B", 8, grows="down", ids_from="A"),
        PoolSpec("C", 8, grows="float", ids_from="A"),
    )
    rig = Rig(backend, *specs, total_bytes=8 * 40, debug=True)
    a, b, c = rig.arena["A"], rig.arena["B"], rig.arena["C"]
    ids = a.alloc(4)
    b.bind(ids[2 - held :])
    c.bind(ids[2:])
    counts = {"B": held}
    with rig.arena.free_group():
        a.free(ids[:1], {"B": held - 1})
        for call in (
            lambda: a.free(ids[:2], counts),
            lambda: a.free_tokens(ids[:2], 2, counts),
            lambda: a.free_token_run(ids[:2], counts),
        ):
            with pytest.raises(UsageError, match=r"id 1 .* twice in this group"):
                call()
    assert (a.live_pages, b.live_pages, c.live_pages) == (3, 3, 2)
    with rig.arena.free_group():
        c.release(ids[2:3])
        with pytest.raises(UsageError, match=r"id 3 of pool 'C' .* twice in this group"):
            a.free(ids[1:3], {"B": 2, "C": 1})
    assert (a.live_pages, b.live_pages, c.live_pages) == (3, 3, 1)
    rig.arena.check(deep=True)

"""What fits where pools share ids: pages of one, ids of the other, in one buffer."""

import random

import pytest
import torch

from kvdefrag import Arena, OutOfPages, PoolSpec, UsageError
from kvdefrag.allocator.testing import stamp_pages, wrong_pages

from .rig import by_backend, state_of
from .sharing import bound, sharing


def test_capacity_is_joint(backend):
    """Pages of 2 and 3 units in 100 units: ids of the one, pages of the other."""
    specs = [
        PoolSpec("full", 2, virtual_pages=30),
        PoolSpec("window", 3, grows="down", ids_from="full"),
    ]
    arena = Arena(103, specs, "cpu", backend)
    full, window = arena["full"], arena["window"]
    assert window.largest_allocation == 19
    assert (full.available(), window.available()) == (30, 0)
    assert arena.fits({"full": 19, "window": 19})
    assert not arena.fits({"full": 20, "window": 20})
    assert not arena.fits({"full": 5, "window": 6})
    ids = full.alloc(19)
    assert window.available() == 19
    window.bind(ids)
    assert window.available() == 0
    with pytest.raises(OutOfPages) as found:
        full.alloc(3)
    assert (found.value.asked, found.value.available) == (3, 1)
    arena.check(deep=True)


@pytest.mark.parametrize("debug", [False, True])
def test_alloc_many_binds_the_last_ids(backend, debug):
    arena = sharing(backend, debug, zero_on_alloc=True)
    arena.buffer.fill_(0xFF)
    granted = arena.alloc_many({"linear": 9, "full": 9, "window": 4})
    assert list(granted) == ["linear", "full", "window"]
    assert granted["window"].tolist() == granted["full"].tolist()[5:] == bound(arena, "window")
    assert granted["linear"].tolist() == bound(arena, "linear") == bound(arena, "full")
    window = arena["window"]
    assert (window.pages[window.translate(granted["window"])] == 0).all()
    granted["linear"].fill_(-9)
    assert granted["full"].tolist() == bound(arena, "full")
    assert arena.alloc_many({"full": 0, "window": 0})["window"].tolist() == []
    before = state_of(arena)
    with pytest.raises(OutOfPages):
        arena.alloc_many({"full": 45, "window": 45})
    after = state_of(arena)
    assert after == before
    arena.check(deep=True)


@pytest.mark.parametrize("blocked", [False, True])
def test_alloc_many_keeps_room_for_a_borrower_below(backend, blocked):
    """The lender floats above its borrower, and must leave it the lower pages."""
    specs = [
        PoolSpec("window", 8, ids_from="full"),
        PoolSpec("full", 8, grows="float"),
        PoolSpec("top", 8, grows="down"),
    ]
    arena = Arena(8 * 41, specs, "cpu", backend)
    arena["top"].alloc(2)
    first = arena["full"].alloc(6)
    arena["window"].bind(first[3:])
    handle = arena.block_moves("test") if blocked else None
    left = 0
    while arena.fits({"full": left + 1, "window": left + 1}):
        left += 1
    assert left > 5
    granted = arena.alloc_many({"full": left, "window": left})
    assert granted["window"].tolist() == granted["full"].tolist()
    assert arena["window"].live_pages == 3 + left
    if handle is not None:
        handle.release()
    arena["full"].free(first, cascade={"window": 3})
    arena.check(deep=True)


def test_bind_packs_the_neighbour_to_the_need(backend):
    specs = [PoolSpec("full", 8), PoolSpec("window", 8, grows="down", ids_from="full")]
    arena = Arena(8 * 21, specs, "cpu", backend)
    full, window = arena["full"], arena["window"]
    ids = full.alloc(18)
    stamp_pages(full, ids)
    full.free(ids[::3])
    window.bind(ids[1:3])
    stamp_pages(window, ids[1:3])
    left = [virtual for virtual in bound(arena, "full") if virtual not in (2, 3)]
    assert window.available() == 6
    before = arena.stats().moves
    window.bind(left[:3])
    assert arena.stats().moves - before == 2
    stamp_pages(window, torch.tensor(left[:3]))
    for pool in (full, window):
        assert wrong_pages(pool, torch.tensor(bound(arena, pool.name))) == []
    state = state_of(arena)
    with pytest.raises(OutOfPages):
        window.bind(left[3:7])
    assert state_of(arena) == state
    window.bind(left[3:6])
    arena.check(deep=True)


def lent(total_bytes: int, full: int, window: int, way: str, other: str) -> list[PoolSpec]:
    return [
        PoolSpec("window", window, grows=way, ids_from="full"),
        PoolSpec("full", full, grows=other),
        PoolSpec("state", 7, grows="down" if "down" not in (way, other) else "up"),
    ]


@pytest.mark.parametrize(("way", "other"), [("up", "float"), ("float", "up"), ("down", "up")])
def test_largest_bind_of_an_empty_arena(way, other):
    for seed in range(60):
        draw = random.Random(seed)
        total_bytes, full, window = draw.randrange(60, 400), draw.randint(1, 9), draw.randint(1, 9)
        specs = lent(total_bytes, full, window, way, other)
        if way == "down":
            specs = specs[:2]
        report = Arena.feasibility(total_bytes, specs)
        found = {pool.name: pool.largest_allocation for pool in report.pools}
        arena = Arena(total_bytes, specs, "cpu", "host")
        most = 0
        while arena.fits({"full": most + 1, "window": most + 1}):
            most += 1
        assert found["window"] == arena["window"].largest_allocation == most
        assert report.pools[0].virtual_pages == arena["full"].virtual_to_physical.numel() - 1
        arena.alloc_many({"full": most, "window": most})
        request = {"full": most, "window": most}
        assert Arena.feasibility(total_bytes, specs, request).fits
        request = {"full": most + 1, "window": most + 1}
        assert not Arena.feasibility(total_bytes, specs, request).fits
        needed = Arena.feasibility(1, specs).needed_bytes
        assert Arena.feasibility(needed, specs).fits
        assert not Arena.feasibility(needed - 1, specs).fits


def test_a_request_that_asks_more_of_a_borrower_than_of_its_lender():
    specs = [PoolSpec("full", 8), PoolSpec("window", 8, grows="down", ids_from="full")]
    report = Arena.feasibility(800, specs, {"full": 5, "window": 6})
    assert [pool.available_pages for pool in report.pools] == [93, 5]
    with pytest.raises(UsageError, match="'window' is asked for 6 pages of 8 bytes and can have 5"):
        Arena(800, specs, "cpu", largest_request={"full": 5, "window": 6})
    assert Arena.feasibility(800, specs, {"full": 6, "window": 6}).fits
    idle = Arena.feasibility(800, specs, {"full": 4}).pools[1]
    assert (idle.asked_pages, idle.available_pages) == (0, 4)
    assert Arena.feasibility(800, specs).pools[1].available_pages == 99
    with pytest.raises(UsageError, match=r"needs 24: pool 'window' cannot .* beside one of its"):
        Arena(16, specs, "cpu")


@pytest.mark.parametrize("blocked", [False, True])
def test_what_fits_together_is_granted_together(backend, blocked):
    """Chains of a lender, two borrowers and a fourth pool, in any order and direction."""
    answers = []
    for seed in range(by_backend(backend, 300, 12)):
        draw = random.Random(seed)
        arena = crowded(backend, draw)
        handle = arena.block_moves("test") if blocked else None
        shares = [(draw.randint(0, 14), name) for name in ("window", "linear", "state")]
        asked = {name: share for share, name in shares}
        asked["full"] = max(asked["window"], asked["linear"]) + draw.randint(0, 3)
        fits = arena.fits(asked)
        answers.append(fits)
        before = state_of(arena)
        try:
            granted = arena.alloc_many(asked)
        except OutOfPages:
            assert not fits
            assert state_of(arena) == before
        else:
            assert fits
            assert {name: ids.numel() for name, ids in granted.items()} == asked
        if handle is not None:
            handle.release()
        arena.check(deep=True)
    assert 0.1 < sum(answers) / len(answers) < 0.9


def crowded(backend: str, draw: random.Random) -> Arena:
    """About as many pages as fit, with holes in all pools."""
    ways = draw.sample(["up", "down", "float", "float"], 4)
    names = ["full", "window", "linear", "state"]
    specs = [
        PoolSpec(
            name,
            draw.randint(1, 5),
            grows=way,
            ids_from="full" if name in ("window", "linear") else None,
        )
        for name, way in zip(names, ways, strict=True)
    ]
    arena = Arena(draw.randint(120, 240), specs, "cpu", backend)
    full, window, linear, state = (arena[name] for name in names)
    ids = full.alloc(draw.randint(0, min(12, full.available())))
    state.alloc(draw.randint(0, min(8, state.available())))
    for pool in (window, linear):
        wanted = ids[draw.randint(0, ids.numel()) :]
        pool.bind(wanted[: pool.available()])
        pool.release(bound(arena, pool.name)[:: draw.randint(1, 4)])
    free = [each for each in bound(arena, "full") if draw.random() < 0.3]
    held = {pool.name: sum(each in bound(arena, pool.name) for each in free)
            for pool in (window, linear)}  # fmt: skip
    full.free(free, cascade=held)
    state.free(bound(arena, "state")[:: draw.randint(1, 3)])
    arena.check(deep=True)
    return arena

"""What a buffer can hold, said before anything is made: the same as the arena then grants."""

from dataclasses import FrozenInstanceError
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvdefrag import Arena, OutOfPages, PoolSpec, UsageError

from .rig import Rig, by_backend, state_of

PAIR = (PoolSpec("a", 24), PoolSpec("b", 56, grows="down"))
TRIO = (
    PoolSpec("state", 700, grows="down"),
    PoolSpec("window", 96, grows="float", virtual_pages=30),
    PoolSpec("full", 64),
)


class Start(NamedTuple):
    """A buffer, its pools in any order, and what is asked of it at the start."""

    total_bytes: int
    specs: tuple[PoolSpec, ...]
    request: dict[str, int]


@st.composite
def starts(draw: st.DrawFn, most_pages: int) -> Start:
    """One to four pools; the request sometimes leaves pools out, and fits or just does not."""
    ends = draw(st.lists(st.sampled_from(["up", "down"]), unique=True, max_size=2))
    floats = draw(st.integers(0 if ends else 1, 4 - len(ends)))
    grows = draw(st.permutations([*ends, *["float"] * floats]))
    specs = tuple(
        PoolSpec(
            name,
            draw(st.integers(1, 24)),
            grows=way,
            virtual_pages=draw(st.none() | st.integers(1, most_pages)),
        )
        for name, way in zip("abcd", grows, strict=False)
    )
    sizes = [spec.page_bytes for spec in specs]
    total_bytes = draw(
        st.integers(max(sizes) // 2 + 1, most_pages * (min(sizes) + max(sizes)) // 2)
    )
    share = 2 * total_bytes // len(specs)
    request = {
        spec.name: draw(st.integers(0, share // spec.page_bytes))
        for spec in specs
        if draw(st.booleans())
    }
    return Start(total_bytes, specs, request)


def can_be_made(start: Start) -> bool:
    try:
        Arena(start.total_bytes, start.specs, "cpu", "host")
    except UsageError:
        return False
    return True


def accounted(start: Start) -> None:
    """Every byte of the buffer has a name, and what is to spare is room for the top pool."""
    report = Arena.feasibility(*start)
    taken = sum(pool.asked_pages * pool.page_bytes for pool in report.pools)
    assert report.request_bytes == taken
    losses = report.grid_bytes, report.tail_bytes
    assert min(losses) >= 0
    assert report.total_bytes == report.sink_bytes + taken + sum(losses) + report.spare_bytes
    top = next((pool for pool in reversed(report.pools) if pool.asked_pages), None)
    if top and top.virtual_pages > top.available_pages >= top.asked_pages:
        assert report.spare_bytes == (top.available_pages - top.asked_pages) * top.page_bytes
    for pool in report.pools:
        if pool.largest_allocation and pool.virtual_pages > pool.largest_allocation:
            alone = pool.largest_allocation * pool.page_bytes
            rest = report.sink_bytes + pool.grid_bytes + pool.tail_bytes
            assert alone + rest == report.total_bytes


def granted_as_said(start: Start) -> None:
    report = Arena.feasibility(*start)
    with_ids = all(pool.virtual_pages >= pool.asked_pages for pool in report.pools)
    assert report.fits == (with_ids and report.needed_bytes <= start.total_bytes)
    if not can_be_made(start):
        assert not report.fits
        return
    arena = Arena(start.total_bytes, start.specs, "cpu", "host")
    assert report.fits == arena.fits(start.request)
    for pool in report.pools:
        assert pool.largest_allocation == arena[pool.name].available()
        assert pool.largest_allocation == arena[pool.name].largest_allocation
        others = {name: n for name, n in start.request.items() if name != pool.name}
        if arena.fits(others):
            arena.alloc_many(others)
            assert pool.available_pages == arena[pool.name].available()
            arena.clear()
    if report.fits:
        served = Arena(*start[:2], "cpu", "host", largest_request=start.request)
        ids = served.alloc_many(start.request)
        assert {name: len(each) for name, each in ids.items()} == start.request
    else:
        with pytest.raises(UsageError, match="cannot serve the largest request"):
            Arena(*start[:2], "cpu", "host", largest_request=start.request)


@settings(max_examples=200)
@given(starts(30))
def test_the_arena_grants_what_was_said(start: Start):
    accounted(start)
    granted_as_said(start)


@settings(max_examples=200)
@given(starts(200))
def test_needed_bytes_are_the_fewest(start: Start):
    specs = tuple(PoolSpec(spec.name, spec.page_bytes, grows=spec.grows) for spec in start.specs)
    needed = Arena.feasibility(start.total_bytes, specs, start.request).needed_bytes
    assert Arena.feasibility(needed, specs, start.request).fits
    assert not Arena.feasibility(needed - 1, specs, start.request).fits


def test_largest_single_allocation(backend):  # fault 13
    rig = Rig.of(backend, 5)
    before = state_of(rig.arena)
    with pytest.raises(OutOfPages) as raised:
        rig.pool.alloc(5)
    assert (raised.value.asked, raised.value.available) == (5, 4)
    assert state_of(rig.arena) == before
    rig.alloc(by_backend(backend, 4, 2))
    assert rig.pool.largest_allocation == 4
    (said,) = Arena.feasibility(40, [PoolSpec("a", 8)]).pools
    assert said.largest_allocation == 4


def test_numbers_of_a_chain():
    report = Arena.feasibility(10_000, TRIO, {"full": 40, "window": 20, "state": 5})
    assert [pool.name for pool in report.pools] == ["full", "window", "state"]
    # Sinks to 700, "full" on its pages 11 to 50 (704 to 3264), "window" on 34 to 53 (to 5184),
    # "state" on 8 to 12 (5600 to 9100); its grid ends at 9800.
    assert (report.sink_bytes, report.request_bytes) == (700, 7980)
    assert (report.grid_bytes, report.tail_bytes, report.spare_bytes) == (420, 200, 700)
    assert (report.needed_bytes, report.fits) == (9100, True)
    assert [pool.largest_allocation for pool in report.pools] == [145, 30, 13]
    assert [pool.available_pages for pool in report.pools] == [56, 30, 6]
    lost = [(pool.grid_bytes, pool.tail_bytes) for pool in report.pools]
    assert lost == [(4, 16), (68, 16), (0, 200)]


def test_report_is_readable():
    report = Arena.feasibility(1000, PAIR, {"a": 20, "b": 9})
    assert str(report).splitlines() == [
        "1,000 bytes: 56 sinks, 984 largest request, 24 lost to grids, 48 to the tail, "
        "-112 to spare",
        "pool  page bytes  pages alone  lost to grid  lost to tail  asked  can have",
        "a             24           38            16            16     20        15",
        "b             56           16             0            48      9         7",
        "1,064 bytes needed: does not fit: "
        "pool 'a' is asked for 20 pages of 24 bytes and can have 15, alone 38, with 40 ids; "
        "pool 'b' is asked for 9 pages of 56 bytes and can have 7, alone 16, with 16 ids",
    ]
    assert str(Arena.feasibility(1000, PAIR)).endswith("\n112 bytes needed: fits")
    with pytest.raises(FrozenInstanceError):
        report.total_bytes = 2000


def test_refused_with_the_numbers_before_anything_is_made(monkeypatch):
    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("a tensor is made")

    for name in ("empty", "zeros", "full", "tensor"):
        monkeypatch.setattr(torch, name, refuse)
    request = {"a": 20, "b": 9}
    wanted = (
        "total_bytes: 1000 cannot serve the largest request, which needs 1064: pool 'a' is asked "
        "for 20 pages of 24 bytes and can have 15, alone 38, with 40 ids; pool 'b' is asked for 9"
    )
    for make in (
        lambda: Arena(1000, PAIR, largest_request=request),
        Arena.feasibility(1000, PAIR, request).require,
    ):
        with pytest.raises(UsageError) as raised:
            make()
        assert str(raised.value).startswith(wanted)
    report = Arena.feasibility(1000, PAIR, {"a": 20, "b": 7})
    assert report.require() is report


def test_ids_that_run_out_are_named():
    specs = [PoolSpec("a", 8, virtual_pages=3)]
    report = Arena.feasibility(800, specs, {"a": 4})
    assert (report.fits, report.needed_bytes) == (False, 40)
    with pytest.raises(UsageError, match="can have 3, alone 3, with 3 ids"):
        report.require()


def test_a_buffer_too_small_for_a_page_is_reported():
    report = Arena.feasibility(60, PAIR)
    assert [pool.largest_allocation for pool in report.pools] == [0, 0]
    assert (report.fits, report.needed_bytes) == (False, 112)
    with pytest.raises(UsageError, match="pool 'b' cannot hold a page of 56 bytes"):
        report.require()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, PAIR), "total_bytes: expected 1 or more, got 0"),
        ((1000, []), "pools: expected 1 to 16 pools, got 0"),
        ((1000, [PAIR[0], PoolSpec("c", 8)]), "pools: each end takes one pool"),
        ((2**40, [PoolSpec("a", 8)]), "pool 'a': at most 1073741824 pages"),
        ((1000, PAIR, {"c": 1}), r"largest_request: no pool 'c', the pools are \['a', 'b'\]"),
        ((1000, PAIR, {"a": -1}), r"largest_request\['a'\]: expected 0 or more, got -1"),
        ((1000, PAIR, [1, 2]), "largest_request: expected a dict of pages by pool name"),
        ((1000, PAIR, 0), "largest_request: expected a dict of pages by pool name"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(UsageError, match=message):
        Arena.feasibility(*arguments)

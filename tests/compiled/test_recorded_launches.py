"""What each call launches: the real launchers and a real arena, on a driver that only records."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from kvdefrag import Arena, PoolSpec
from kvdefrag.kernels.copy import copy_pages
from kvdefrag.kernels.launch import LANES, MAX_PROGRAMS, launch
from kvdefrag.kernels.layered import Layers, copy_pages_layered
from kvdefrag.kernels.translate import _translate_kernel, translate

from .recorded_arena import Seen, recorded_arena, seen_during
from .stand_in_driver import StandInDriver

BIND, UNBIND, BIND_BORROWED = "_bind_kernel", "_unbind_kernel", "_bind_borrowed_kernel"
TRANSLATE, TOKENS = "_translate_kernel", "_translate_tokens_kernel"
GATHER, REBIND = "_gather_virtual_kernel", "_rebind_kernel"
FLAT, CHUNKED = "_copy_flat_kernel", "_copy_chunked_kernel"
GROW, EXTEND, DECODE = "_bind_tokens_kernel", "_extend_kernel", "_decode_kernel"
FREE_SET, FREE_RUN = "_unbind_tokens_kernel", "_unbind_run_kernel"
FREE_GROUP, ZERO = "_unbind_group_kernel", "_zero_kernel"
RECORD = torch.zeros(16, dtype=torch.int64)

Call = Callable[[], Any]


class Rig:
    """One pool of small pages and one of large ones, which grow towards each other."""

    def __init__(self, gpu: StandInDriver, patch: pytest.MonkeyPatch) -> None:
        self.gpu = gpu
        self.total_bytes = 96 * 16384
        pools = [
            PoolSpec("small", page_bytes=4096, page_size=16, grows="up"),
            PoolSpec("large", page_bytes=16384, page_size=1, grows="down"),
        ]
        self.arena: Arena = recorded_arena(patch, pools, self.total_bytes)

    def run(self, call: Call) -> tuple[Any, Seen]:
        with seen_during(self.gpu, self.arena) as seen:
            result = call()
        self.arena.check(deep=True)
        return result, seen

    def expect(self, call: Call, kernels: list[str], operators: tuple[str, ...] = ()) -> Any:
        """The call's result; it must launch exactly these kernels and torch operators."""
        result, seen = self.run(call)
        assert seen.kernels == kernels
        assert seen.operators == list(operators)
        return result


@pytest.fixture
def rig(gpu: StandInDriver, monkeypatch: pytest.MonkeyPatch) -> Rig:
    return Rig(gpu, monkeypatch)


@pytest.fixture(params=["small", "large"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


READ_BACK = ("cat", "copy_")
UPLOAD = ("copy_",)
ASSIGN = ("copy_",)


def test_one_launch_for_alloc_free_and_translate(rig: Rig, name: str) -> None:
    pool = rig.arena[name]
    ids = rig.expect(lambda: pool.alloc(12), [BIND])
    assert ids.tolist() == list(range(1, 13))
    rig.expect(lambda: pool.free(ids[1:9:2]), [UNBIND])
    places = rig.expect(lambda: pool.translate(ids), [TRANSLATE])
    assert places.eq(0).tolist() == [i in (1, 3, 5, 7) for i in range(12)]
    rig.expect(lambda: pool.translate_tokens(ids), [TOKENS])
    out = torch.empty(12, dtype=torch.int32)
    rig.expect(lambda: pool.translate_tokens(ids, out=out), [TOKENS])
    assert rig.expect(lambda: pool.alloc(6), [BIND]).unique().numel() == 6


def test_one_launch_for_every_token_call(rig: Rig, name: str) -> None:
    pool = rig.arena[name]
    size = pool.page_size
    tokens = rig.expect(lambda: pool.alloc_tokens(12 * size), [GROW])
    ends = tokens.view(12, size)[:, -1].clone()
    grown = rig.expect(lambda: pool.decode(ends[:3], 3), [DECODE])
    batch = torch.zeros(2, dtype=torch.int64), torch.full((2,), 2 * size), torch.full((2,), -1)
    more = rig.expect(lambda: pool.extend(*batch, 4, 4 * size), [EXTEND])
    rig.expect(lambda: pool.free_tokens(grown, 3), [FREE_SET])
    rig.expect(lambda: pool.free_token_run(more), [FREE_RUN])
    rows = tokens.view(3, -1)
    rig.expect(lambda: pool.translate_tokens(rows, out_width=4 * size + 3), [TOKENS])

    ids = tokens[3 * size :: size] // size

    def group() -> None:
        with rig.arena.free_group():
            pool.free_tokens(tokens[: 2 * size], 2)
            pool.free(ids)

    _, seen = rig.run(group)
    assert (seen.kernels, seen.backend_launches) == ([FREE_GROUP], 1)
    assert pool.live_pages == 1


def test_one_launch_for_every_call_with_borrowed_ids(
    gpu: StandInDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs = [
        PoolSpec("full", page_bytes=4096, page_size=4),
        PoolSpec("window", page_bytes=512, page_size=4, grows="float", ids_from="full"),
    ]
    arena = recorded_arena(monkeypatch, specs, 1 << 21)
    full, window = arena["full"], arena["window"]
    ids = full.alloc(300)

    def expect(call: Call, *kernels: str) -> None:
        with seen_during(gpu, arena) as seen:
            call()
        assert (seen.kernels, seen.operators) == (list(kernels), [])
        arena.check(deep=True)

    def group() -> None:
        with arena.free_group():
            full.free(ids[20:30])
            window.release(ids[19:30], 10)

    expect(lambda: window.bind(ids), BIND_BORROWED)
    expect(lambda: window.release(ids[:10]), UNBIND)
    expect(lambda: window.release(ids[:20], 10), FREE_SET)
    tokens = ids * 4
    expect(lambda: window.release_tokens(tokens[:20], 0), FREE_SET)
    expect(lambda: full.free(ids[:10]), UNBIND)
    expect(group, FREE_SET, FREE_SET)
    expect(lambda: full.free(ids[30:90], cascade={"window": 60}), FREE_SET, UNBIND)
    assert (full.live_pages, window.live_pages) == (220, 210)


def test_pages_are_zeroed_right_behind_the_bind(
    gpu: StandInDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = PoolSpec("clean", page_bytes=4096, page_size=4, zero_on_alloc=True)
    arena = recorded_arena(monkeypatch, [spec], 1 << 20)
    arena.buffer.fill_(255)
    with seen_during(gpu, arena) as seen:
        ids = arena["clean"].alloc(3)
        arena["clean"].decode(ids * 4, 0)
        arena["clean"].decode(ids * 4 + 3, 3)
        arena.prewarm()
    assert seen.kernels[:5] == [BIND, ZERO, DECODE, DECODE, ZERO]
    assert ZERO in seen.kernels[5:]
    assert int((arena["clean"].pages == 0).all(1).sum()) == 6


def test_nothing_asked_nothing_launched(rig: Rig, name: str) -> None:
    pool = rig.arena[name]
    none = torch.empty(0, dtype=torch.int64)
    calls = [
        pool.flush, rig.arena.flush, rig.arena.stats, pool.available, lambda: pool.alloc(0),
        lambda: pool.free(none), lambda: pool.translate(none), lambda: pool.translate_tokens(none),
        lambda: rig.arena.fits({name: 3}), lambda: pool.flush(max_moves=3),
    ]  # fmt: skip
    for held in (0, 5):
        pool.alloc(held)
        for call in calls:
            rig.expect(call, [])


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 30])
def test_flush_is_one_gather_and_one_copy(rig: Rig, name: str, count: int) -> None:
    pool, copy = rig.arena[name], FLAT if name == "small" else CHUNKED
    ids = pool.alloc(2 * count)
    marks = torch.arange(2 * count, dtype=torch.uint8)
    pool.pages[pool.translate(ids)] = marks[:, None]
    pool.free(ids[:count])
    result = rig.expect(pool.flush, [GATHER, copy], READ_BACK + UPLOAD)
    assert result.moves == count
    assert pool.pages[pool.translate(ids[count:])].eq(marks[count:, None]).all()
    rig.expect(pool.flush, [])


def test_flush_within_a_budget_also_writes_what_remains(rig: Rig, name: str) -> None:
    pool, copy = rig.arena[name], FLAT if name == "small" else CHUNKED
    ids = pool.alloc(20)
    pool.free(ids[:9])
    operators = READ_BACK + UPLOAD + ASSIGN
    result = rig.expect(lambda: pool.flush(max_moves=4), [GATHER, copy], operators)
    assert (result.moves, result.stopped_by) == (4, "budget")


def test_flush_that_only_absorbs_launches_no_kernel(rig: Rig, name: str) -> None:
    pool = rig.arena[name]
    ids = pool.alloc(20)
    pool.free(ids[12:])
    assert rig.expect(pool.flush, [], READ_BACK).absorbed == 8


def test_flush_of_two_pools_reads_back_once(rig: Rig) -> None:
    for name in ("small", "large"):
        ids = rig.arena[name].alloc(10)
        rig.arena[name].free(ids[:5])
    kernels = [GATHER, FLAT, GATHER, CHUNKED]
    results = rig.expect(rig.arena.flush, kernels, READ_BACK + UPLOAD)
    assert {result.moves for result in results.values()} == {5}
    rig.expect(rig.arena.flush, [])


def test_alloc_that_packs_its_neighbour(rig: Rig) -> None:
    small, large = rig.arena["small"], rig.arena["large"]
    ids = large.alloc(90)
    large.free(ids[10:80])
    free_pages = small.available()
    kernels = [GATHER, CHUNKED, BIND]
    rig.expect(lambda: small.alloc(free_pages), kernels, READ_BACK + UPLOAD)


def test_alloc_many_binds_once_a_pool(rig: Rig) -> None:
    rig.expect(lambda: rig.arena.alloc_many({"small": 3, "large": 4}), [BIND, BIND])


def test_pool_with_a_mover_rebinds(gpu: StandInDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[int] = []
    spec = PoolSpec(
        "own", page_bytes=4096, page_size=1, grows="up",
        mover=lambda sources, targets: moved.append(sources.numel()),
    )  # fmt: skip
    arena = recorded_arena(monkeypatch, [spec], 1 << 20)
    arena["own"].free(arena["own"].alloc(20)[:7])
    with seen_during(gpu, arena) as seen:
        arena["own"].flush()
    assert seen.kernels == [GATHER, REBIND]
    assert moved == [7]


def test_arena_counts_what_is_launched(rig: Rig) -> None:
    pool = rig.arena["large"]
    _, seen = rig.run(lambda: pool.free(pool.alloc(40)[::2]))
    assert seen.backend_launches == len(seen.kernels) == 2
    _, seen = rig.run(lambda: pool.flush(max_moves=5))
    # The read-back's concatenation and what remains of the holes are torch operators.
    assert seen.backend_launches == len(seen.kernels) + 2 == 4


@pytest.mark.parametrize("used", [False, True])
def test_prewarm_launches_and_changes_nothing(rig: Rig, used: bool) -> None:
    if used:
        for name in ("small", "large"):
            ids = rig.arena[name].alloc(9)
            rig.arena[name].free(ids[2:5])
    held = [rig.arena.buffer, rig.arena._shared.record.words]
    for band in rig.arena._bands:
        held += [band.table.v2p, band.table.p2v, band.holes.buffer, band.ids.buffer]
    before = [tensor.clone() for tensor in held]
    _, seen = rig.run(rig.arena.prewarm)
    tables = {BIND, UNBIND, TRANSLATE, TOKENS, GATHER, FLAT, CHUNKED}
    assert set(seen.kernels) == tables | {GROW, EXTEND, DECODE, FREE_SET, FREE_RUN, FREE_GROUP}
    for tensor, old in zip(held, before, strict=True):
        assert torch.equal(tensor, old)


@pytest.mark.parametrize(
    ("page_bytes", "programs"), [(4096, 35_000), (65536, 280_000), (16384 + 8, 140_000)]
)
def test_70_000_moves_are_one_launch(gpu: StandInDriver, page_bytes: int, programs: int) -> None:
    pairs = torch.zeros(70_000, dtype=torch.int64)
    copy_pages(torch.zeros(page_bytes, dtype=torch.uint8), pairs, pairs, page_bytes, RECORD)
    layers = Layers([torch.zeros(2, page_bytes, dtype=torch.uint8)] * 3)
    copy_pages_layered(layers, pairs, pairs, RECORD)
    assert [launch.grid[0] for launch in gpu.launches] == [programs, 3 * programs]


def test_grid_is_as_large_as_a_gpu_takes_and_no_larger(gpu: StandInDriver) -> None:
    ids = torch.zeros(1, dtype=torch.int64)
    arguments = (ids, ids, ids, 1, 1, 1, 1)
    for _ in range(2):
        launch(_translate_kernel, MAX_PROGRAMS, *arguments, BLOCK=LANES)
        with pytest.raises(ValueError, match=f"program_count: .*{MAX_PROGRAMS}"):
            launch(_translate_kernel, MAX_PROGRAMS + 1, *arguments, BLOCK=LANES)
    assert [launched.grid[0] for launched in gpu.launches] == [2**31 - 1] * 2


@pytest.mark.parametrize(
    ("count", "programs"), [(1, 1), (127, 1), (128, 1), (129, 2), (1024, 8), (1025, 9)]
)
def test_table_kernels_take_128_ids_a_program(
    gpu: StandInDriver, count: int, programs: int
) -> None:
    ids = torch.zeros(2 * count, dtype=torch.int32)[::2]
    translate(torch.zeros(4, dtype=torch.int64), ids, 4)
    (launched,) = gpu.launches
    assert launched.grid == (programs, 1, 1)
    assert launched.arguments["count"] == count
    assert launched.arguments["id_stride"] == 2

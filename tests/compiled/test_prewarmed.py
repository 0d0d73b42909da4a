"""After prewarm() no call compiles or loads anything."""

from dataclasses import replace
from itertools import product

import pytest
import torch

from kvdefrag import Arena, PoolSpec

from .recorded_arena import recorded_arena
from .stand_in_driver import StandInDriver
from .test_handles import COUNTS, DTYPES, OFFSETS, STRIDES, handles


def specs() -> list[PoolSpec]:
    return [
        PoolSpec("small", page_bytes=656, page_size=16, grows="up"),
        PoolSpec("large", page_bytes=16384 + 8, page_size=1, grows="down"),
    ]


def use_tokens(arena: Arena, name: str, dtype: torch.dtype) -> None:
    """A sequence that grows and goes, by run, by set and in a group."""
    pool, size = arena[name], arena[name].page_size
    first = pool.alloc_tokens(size)
    last = first[-1:].to(dtype)
    for _ in range(2):
        lengths = torch.tensor([size], dtype=dtype)
        grown = pool.extend(lengths, lengths + 3 * size, last, 3, 3 * size).to(dtype)
        more = pool.decode(grown[-1:], 1)
        pool.free_token_run(grown[:size])
        with arena.free_group():
            pool.free((more // size).to(dtype))
            pool.free_tokens(grown[size : 2 * size], 1)
        with arena.free_group():
            pool.free_tokens(grown[2 * size :], 1)
    with arena.free_group():
        pool.free((first[:1] // size).to(dtype))


def use(arena: Arena, name: str) -> int:
    """Every call of one pool with many counts, slices and strides; returns the pages moved."""
    pool = arena[name]
    moves = 0
    counts = [count for count in COUNTS if 4 * count < pool.num_pages]
    for count, offset, stride in product(counts, OFFSETS, STRIDES):
        ids = pool.alloc(count * stride + offset)
        for dtype, out_dtype in product(DTYPES, repeat=2):
            some = ids.to(dtype)[offset::stride]
            pool.translate(some)
            pool.translate_tokens(some)
            pool.translate_tokens(some, out=torch.empty(2 * count, dtype=out_dtype)[::2])
        pool.free(ids[offset::stride].to(DTYPES[offset % 2]))
        use_tokens(arena, name, DTYPES[stride % 2])
        moves += pool.flush(max_moves=1).moves
        moves += arena.flush(urgent=True)[name].moves
        arena.check()
        rest = pool.physical_to_virtual[1:]
        pool.free(rest[rest > 0][: pool.live_pages // 2])
    return moves


@pytest.mark.parametrize("name", ["small", "large"])
def test_prewarmed_arena_compiles_and_loads_nothing(
    gpu: StandInDriver, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    arena = recorded_arena(monkeypatch, specs(), 400 * 16392)
    arena.prewarm()
    compiled, loaded = len(gpu.compiled), len(gpu.loaded)
    assert compiled == loaded == sum(handles().values()) == 12 + 10
    launched = len(gpu.launches)
    assert use(arena, name) > 50
    arena.check(deep=True)
    assert len(gpu.launches) > launched + 500
    assert (len(gpu.compiled), len(gpu.loaded)) == (compiled, loaded)
    assert sum(handles().values()) == compiled


def test_prewarmed_mover_compiles_and_loads_nothing(
    gpu: StandInDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = PoolSpec(
        "own", page_bytes=4096, page_size=16, grows="up", mover=lambda sources, targets: None
    )
    arena = recorded_arena(monkeypatch, [spec], 4096 * 4096)
    arena.prewarm()
    compiled = len(gpu.compiled)
    assert use(arena, "own") > 50
    assert len(gpu.compiled) == len(gpu.loaded) == compiled == 11 + 10


def test_prewarmed_borrower_compiles_and_loads_nothing(
    gpu: StandInDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = 2**23  # token ids of more than 32 bits
    borrower = PoolSpec("window", page_bytes=64, grows="float", zero_on_alloc=True, ids_from="full")
    arena = recorded_arena(monkeypatch, [PoolSpec("full", 128, wide), borrower], 1 << 16)
    arena.prewarm()
    compiled = len(gpu.compiled)
    full, window = arena["full"], arena["window"]
    for count, dtype in product((2, 16, 40), DTYPES):
        ids = full.alloc(3 * count).to(dtype)
        window.bind(ids)
        window.release(ids[:count])
        window.release(ids[: 2 * count], count)
        window.release_tokens(ids[: 2 * count + 1], 1)
        full.free_tokens(ids.long()[: 2 * count + 1] * wide, 2 * count + 1)
        with arena.free_group():
            full.free_token_run(ids.long()[2 * count + 1 : 2 * count + 2] * wide)
            window.release(ids[2 * count + 1 :])
            window.release_tokens(ids[:count], 0)
            full.free(ids[2 * count + 2 :])
        arena.check(deep=True)
        ids = full.alloc(2 * count)
        window.bind(ids[count:])
        full.free(ids.to(dtype), cascade={"window": count})
        arena.flush(urgent=True)
    assert (full.live_pages, window.live_pages) == (0, 0)
    assert len(gpu.compiled) == len(gpu.loaded) == compiled


def test_two_arenas_share_their_kernels(
    gpu: StandInDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = recorded_arena(monkeypatch, specs(), 400 * 16392)
    first.prewarm()
    compiled = len(gpu.compiled)
    wider = [replace(spec, page_bytes=3 * spec.page_bytes) for spec in specs()]
    second = Arena(900 * 16392, wider, device="cpu", backend="triton")
    assert use(second, "small") > 50
    assert use(second, "large") > 50
    assert len(gpu.compiled) == compiled

"""Reported faults in the copy: every byte of a page arrives, and no other changes."""

import numpy as np
import pytest
import torch

from kvdefrag import Arena, PoolSpec, UsageError
from kvdefrag.kernels import bind, copy, gather, rebind, translate

from .rig import GUARD, UNUSED, Rig, by_backend

SIZES = [1, 7, 8, 6635, 16 * 1024 + 8, 16 << 20]
INTERPRETED_BYTES = 256 << 10


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32])
def test_every_bit_pattern_survives(backend, dtype):  # fault 11
    values = np.concatenate(
        [np.arange(256, dtype=np.uint8), np.arange(65536, dtype="<u2").view("u1")]
    )
    wanted = torch.from_numpy(values.reshape(16, -1).copy())
    page_bytes = wanted.shape[1]
    engine = torch.zeros(33 * page_bytes // dtype.itemsize, dtype=dtype)
    specs = [PoolSpec("a", page_bytes)]
    arena = Arena(33 * page_bytes, specs, backend=backend, buffer=engine.view(torch.uint8))
    pool = arena["a"]
    ids = pool.alloc(32)
    pool.pages[pool.virtual_to_physical[ids[16:]]] = wanted
    pool.free(ids[:16])
    assert pool.flush(urgent=True).moves == 16
    assert torch.equal(pool.pages[pool.virtual_to_physical[ids[16:]]], wanted)


@pytest.mark.parametrize("offset", [1, 8])
@pytest.mark.parametrize("page_bytes", SIZES)
def test_whole_envelope_moves(backend, page_bytes, offset):  # fault 42
    page_bytes = min(page_bytes, by_backend(backend, page_bytes, INTERPRETED_BYTES))
    rig = Rig.of(backend, 4, page_bytes=page_bytes, offset=offset)
    ids = rig.pool.alloc(3)
    rng = np.random.default_rng(page_bytes)
    filled = torch.from_numpy(rng.integers(0, 256, (3, page_bytes), dtype=np.uint8))
    rig.pool.pages[1:] = filled
    rig.pool.free(ids[:1])
    assert rig.pool.flush(urgent=True).moves == 1
    assert rig.pages([2, 3]) == [2, 1]
    assert torch.equal(rig.pool.pages[1:], filled[[2, 1, 2]])
    assert (rig.pool.pages[0] == UNUSED).all()
    start = rig.buffer.storage_offset()
    assert (rig.memory[:start] == GUARD).all()
    assert (rig.memory[start + 4 * page_bytes :] == GUARD).all()


def test_more_pages_than_a_short_grid_axis(backend, monkeypatch):  # fault 45
    for module in (bind, copy, gather, rebind, translate):
        monkeypatch.setattr(module, "LANES", 1 << 17)  # few programs, for the interpreter's sake
    moves, page_bytes = 70_000, by_backend(backend, 64, 4)
    arena = Arena((2 * moves + 1) * page_bytes, [PoolSpec("a", page_bytes)], "cpu", backend)
    pool = arena["a"]
    ids = pool.alloc(2 * moves)
    rng = np.random.default_rng(45)
    filled = torch.from_numpy(rng.integers(0, 256, (moves, page_bytes), dtype=np.uint8))
    pool.pages[1 + moves :] = filled
    pool.free(ids[:moves])
    assert pool.flush(urgent=True).moves == moves
    assert torch.equal(pool.pages[1 : 1 + moves], filled.flip(0))
    assert torch.equal(pool.virtual_to_physical[ids[moves:]], torch.arange(moves, 0, -1))
    arena.check(deep=True)


def test_page_of_too_many_units_is_refused_up_front(monkeypatch):  # fault 45
    monkeypatch.setattr(copy, "MAX_UNITS", copy.CHUNK_WORDS + 1000)
    buffer = torch.zeros(4 * 1001 + 1, dtype=torch.uint8)[1:]
    with pytest.raises(UsageError, match=r"pool 'a': page_bytes: at most 1000 words.*got 1001"):
        Arena(4 * 1001, [PoolSpec("a", 1001)], backend="triton", buffer=buffer)


@pytest.mark.parametrize("tail", [2**62, -1])
def test_nothing_past_the_last_id(backend, tail):  # fault 46
    rig = Rig.of(backend, 513, page_size=16)
    ids = torch.full((512,), tail)
    ids[:300] = rig.pool.alloc(512)[:300]
    pages = rig.pool.translate(ids[:300])
    out = torch.full((512,), tail)
    tokens = ids[:300] * 16 + 5
    rig.pool.translate_tokens(tokens, out=out[:300])
    assert torch.equal(out[:300], pages * 16 + 5)
    assert (out[300:] == tail).all()
    rig.pool.free(ids[:300])
    rig.arena.check(deep=True)
    assert (rig.pool.live_pages, rig.holes()) == (212, 300)
    assert (ids[300:] == tail).all()


@pytest.mark.parametrize("garbage", [2**62, -1, -(2**63), 2**63 - 1, 513, 0])
def test_no_address_from_garbage(backend, garbage):  # fault 46
    rig = Rig.of(backend, 513, page_size=16)
    rig.pool.alloc(8)
    ids = torch.tensor([3, garbage, 5])
    assert rig.pool.translate(ids).tolist() == [3, 0, 5]
    tokens = torch.tensor([3 * 16 + 1, garbage if garbage > 512 else -1, 5 * 16])
    wanted = [3 * 16 + 1, 0, 5 * 16]
    assert rig.pool.translate_tokens(tokens).tolist() == wanted

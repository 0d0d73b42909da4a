"""From the ids that an engine keeps to the places where its pages are."""

import pytest
import torch

from kvdefrag import Arena, PoolSpec, UsageError

from .rig import Rig

DTYPES = [torch.int32, torch.int64]


@pytest.fixture
def rig(backend) -> Rig:
    """Pages of 4 tokens; 8 moved to page 2, 7 to page 3."""
    rig = Rig.of(backend, 11, page_size=4)
    rig.alloc(8)
    rig.free([2, 3])
    rig.flush(urgent=True)
    return rig


@pytest.mark.parametrize("dtype", DTYPES)
def test_ids(rig, dtype):
    ids = torch.tensor([8, 1, 2, 0, -1, 9, 10, 2**31 - 1, -(2**31)], dtype=dtype)
    pages = rig.pool.translate(ids)
    assert pages.dtype == torch.int64
    assert pages.tolist() == [2, 1, 0, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("stride", [2, 5])
def test_strided_views(rig, dtype, stride):
    ids = torch.full((7, stride), 6, dtype=dtype)
    ids[:, 1] = torch.tensor([8, 7, 6, 5, 4, 1, 2])
    assert rig.pool.translate(ids[:, 1]).tolist() == [2, 3, 6, 5, 4, 1, 0]
    assert rig.pool.translate_tokens(ids[:, 1] * 4 + 3).tolist() == [11, 15, 27, 23, 19, 7, 0]


def test_expanded_view(rig):
    assert rig.pool.translate(torch.tensor([8]).expand(5)).tolist() == [2] * 5


@pytest.mark.parametrize("ids", [[8, 1], (8, 1), range(8, 9), torch.tensor([8, 1]).numpy()])
def test_host_ids(rig, ids):
    assert rig.pool.translate(ids).tolist() == [2, 1][: len(ids)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("out_dtype", DTYPES)
def test_tokens(rig, dtype, out_dtype):
    tokens = torch.tensor([32, 33, 35, 4, 8, 11, 3, -1, 36, 44, 2**31 - 1], dtype=dtype)
    wanted = [8, 9, 11, 4, 0, 0, 3, 0, 0, 0, 0]
    assert rig.pool.translate_tokens(tokens).tolist() == wanted
    memory = torch.full((22,), -5, dtype=out_dtype)
    assert rig.pool.translate_tokens(tokens, out=memory[::2]).data_ptr() == memory.data_ptr()
    assert memory[::2].tolist() == wanted
    assert (memory[1::2] == -5).all()


def test_out_in_place(rig):
    tokens = torch.tensor([32, 4, 9])
    assert rig.pool.translate_tokens(tokens, out=tokens).tolist() == [8, 4, 0]
    assert tokens.tolist() == [8, 4, 0]


def test_answers_follow_a_move(rig):
    ids = torch.tensor([4, 6])
    before, version = rig.pool.translate(ids).tolist(), rig.arena.layout_version
    rig.free([1])
    assert rig.flush().moves == 1
    assert rig.arena.layout_version != version
    assert before == [4, 6]
    assert rig.pool.translate(ids).tolist() == [4, 1]


def test_int32_out_of_a_pool_with_too_many_tokens(backend):
    page_size = 2**31 // 8
    arena = Arena(9 * 8, [PoolSpec("a", 8, page_size)], "cpu", backend)
    pool = arena["a"]
    pool.alloc(8)
    tokens = torch.tensor([8 * page_size + 5])
    out = torch.zeros(1, dtype=torch.int32)
    with pytest.raises(UsageError, match=f"out: int32 cannot hold {9 * page_size} token ids"):
        pool.translate_tokens(tokens, out=out)
    assert out.tolist() == [0]
    assert pool.translate_tokens(tokens).tolist() == [8 * page_size + 5]


def test_last_token_that_int32_holds(backend):
    page_size = (2**31 - 1) // 9
    arena = Arena(9 * 8, [PoolSpec("a", 8, page_size)], "cpu", backend)
    arena["a"].alloc(8)
    tokens = torch.tensor([9 * page_size - 1], dtype=torch.int32)
    out = torch.zeros(1, dtype=torch.int32)
    assert arena["a"].translate_tokens(tokens, out=out).tolist() == [9 * page_size - 1]

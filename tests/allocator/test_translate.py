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


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("out_dtype", DTYPES)
def test_rows_of_tokens(rig, dtype, out_dtype):
    wanted = [[8, 9, 11], [4, 0, 0]]
    tokens = torch.full((2, 9), 5, dtype=dtype)
    tokens[:, 1:7:2] = torch.tensor([[32, 33, 35], [4, 8, -1]])
    rows = tokens[:, 1:7:2]
    assert rig.pool.translate_tokens(rows).tolist() == wanted
    assert rig.pool.translate_tokens(rows.t()).t().tolist() == wanted
    memory = torch.full((2, 20), -5, dtype=out_dtype)
    out = memory[:, 2:12:2]
    before = rig.arena.stats().launches
    assert rig.pool.translate_tokens(rows, out=out, out_width=5) is out
    assert rig.arena.stats().launches - before == 1
    assert out.tolist() == [[*row, 0, 0] for row in wanted]
    assert (memory[:, 3:12:2] == -5).all()
    assert (memory[:, :2] == -5).all()
    assert (memory[:, 12:] == -5).all()
    wide = rig.pool.translate_tokens(rows, out_width=300)
    assert wide[:, :3].tolist() == wanted
    assert (wide[:, 3:] == 0).all()
    assert rig.pool.translate_tokens(rows[0], out_width=4).tolist() == [8, 9, 11, 0]


def test_rows_in_place_and_none(rig):
    memory = torch.tensor([[32, 4, 77, 77], [8, 33, 77, 77]])
    rig.pool.translate_tokens(memory[:, :2], out=memory, out_width=4)
    assert memory.tolist() == [[8, 4, 0, 0], [0, 9, 0, 0]]
    none = torch.zeros(0, 3, dtype=torch.int64)
    before = rig.arena.stats().launches
    assert rig.pool.translate_tokens(none).shape == (0, 3)
    assert rig.pool.translate_tokens(none[:, :0], out_width=0).shape == (0, 0)
    assert rig.arena.stats().launches == before
    assert rig.pool.translate_tokens(none.t(), out_width=2).tolist() == [[0, 0]] * 3


@pytest.mark.parametrize(("shape", "options"), [
    ((2, 3), {"out_width": 2}), ((2, 3), {"out_width": 3.0}), ((3,), {"out_width": -1}),
    ((2, 3), {"out": torch.zeros(2, 4, dtype=torch.int64)}),
    ((2, 3), {"out": torch.zeros(6, dtype=torch.int64)}),
    ((2, 3), {"out": torch.zeros(2, 4, dtype=torch.int64), "out_width": 5}),
    ((2, 3), {"out": torch.zeros(3, dtype=torch.int64).expand(2, 3)}),
    ((2, 3, 4), {}),
])  # fmt: skip
def test_shapes_that_are_refused(rig, shape, options):
    with pytest.raises(UsageError):
        rig.pool.translate_tokens(torch.zeros(shape, dtype=torch.int64), **options)

"""Arenas that cannot be: the constructor names the argument and the value."""

import numpy as np
import pytest
import torch

from kvdefrag import Arena, PoolSpec, UsageError

UP, DOWN = PoolSpec("a", 8), PoolSpec("b", 24, grows="down")


def bytes_tensor(count: int, dtype: torch.dtype = torch.uint8, **options: str) -> torch.Tensor:
    return torch.zeros(count, dtype=dtype, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": ""}, "name: expected a non-empty string, got ''"),
        ({"name": 3}, "name: expected a non-empty string, got 3"),
        ({"page_bytes": 0}, "page_bytes: expected 1 or more, got 0"),
        ({"page_bytes": 8.0}, "page_bytes: expected an integer, got 8.0"),
        ({"page_size": 0}, "page_size: expected 1 or more, got 0"),
        ({"page_size": True}, "page_size: expected an integer, got True"),
        ({"grows": "left"}, "grows: expected 'up', 'down' or 'float', got 'left'"),
        ({"virtual_pages": 0}, "virtual_pages: expected 1 or more, got 0"),
        ({"mover": 7}, "mover: expected a callable, got 7"),
    ],
)
def test_pool_spec(options, message):
    with pytest.raises(UsageError, match=message):
        PoolSpec(**{"name": "a", "page_bytes": 8, **options})


@pytest.mark.parametrize(
    ("pools", "message"),
    [
        ([], "pools: expected 1 to 16 pools, got 0"),
        ([UP, DOWN, PoolSpec("c", 8)], "pools: each end takes one pool, got .*'c' grows up"),
        ([UP, PoolSpec("a", 8, grows="down")], r"pools: expected distinct names, got \['a', 'a'\]"),
        ([UP, PoolSpec("c", 8)], "pools: each end takes one pool, got 'a' grows up, 'c' grows"),
        (["a"], r"pools: expected a list of PoolSpec, got \['a'\]"),
        (UP, "pools: expected a list of PoolSpec, got PoolSpec"),
    ],
)
def test_pools(pools, message):
    with pytest.raises(UsageError, match=message):
        Arena(1000, pools, device="cpu")


@pytest.mark.parametrize(
    ("total_bytes", "message"),
    [
        (0, "total_bytes: expected 1 or more, got 0"),
        (1e3, "total_bytes: expected an integer, got 1000.0"),
        (47, "total_bytes: 47 is too small for pool 'b': a sink of 24 bytes and one page of 24"),
    ],
)
def test_total_bytes(total_bytes, message):
    with pytest.raises(UsageError, match=message):
        Arena(total_bytes, [UP, DOWN], device="cpu")


def test_smallest_arena(backend):
    arena = Arena(48, [UP, DOWN], device="cpu", backend=backend)
    assert (arena["a"].available(), arena["b"].available()) == (3, 1)


@pytest.mark.parametrize(
    ("buffer", "message"),
    [
        (bytes_tensor(999), "buffer: expected 1000 bytes, got 999"),
        (bytes_tensor(1001), "buffer: expected 1000 bytes, got 1001"),
        (bytes_tensor(1000, torch.int8), r"expected a 1-D uint8 tensor, got torch.int8 \[1000\]"),
        (bytes_tensor(1000).view(10, 100), r"1-D uint8 tensor, got torch.uint8 \[10, 100\]"),
        (bytes_tensor(2000)[::2], "buffer: expected a contiguous tensor, got stride 2"),
        (bytes_tensor(1000, device="meta"), "buffer: expected device cpu, got meta"),
        (np.zeros(1000, np.uint8), "buffer: expected a 1-D uint8 tensor, got array"),
    ],
)
def test_buffer(buffer, message):
    with pytest.raises(UsageError, match=message):
        Arena(1000, [UP, DOWN], device="cpu", buffer=buffer)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "cuda"}, "backend: expected 'auto', 'triton' or 'host', got 'cuda'"),
        ({"backend": None}, "backend: expected 'auto', 'triton' or 'host', got None"),
        ({"device": "meta"}, "device: expected a cpu or cuda device, got meta"),
        ({"device": "nowhere"}, "device: 'nowhere' cannot be used"),
        ({"device": 1.5}, "device: 1.5 cannot be used"),
    ],
)
def test_device_and_backend(options, message):
    with pytest.raises(UsageError, match=message):
        Arena(1000, [UP, DOWN], **{"device": "cpu", **options})


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_gpu_by_default():
    with pytest.raises(UsageError, match="device: 'cuda' cannot be used"):
        Arena(1000, [UP, DOWN])


def test_device_of_the_buffer():
    assert Arena(1000, [UP], buffer=bytes_tensor(1000)).device.type == "cpu"


def test_numpy_integers_are_integers(backend):
    spec = PoolSpec("a", np.int64(16), page_size=np.int32(4), virtual_pages=np.int64(6))
    arena = Arena(np.int64(160), [spec], device="cpu", backend=backend)
    ids = arena["a"].alloc(np.int16(6))
    arena["a"].free(ids[:2])
    result = arena["a"].flush(max_moves=np.int64(5))
    assert arena["a"].translate_tokens(ids[2:3] * 4).tolist() == [12]
    assert [type(value) for value in (result.bytes_moved, arena["a"].available())] == [int, int]

"""Wrong arguments of calls: an error that names argument and value, and nothing has changed."""

import numpy as np
import pytest
import torch

from kvdefrag import AllocatorError, UsageError

from .rig import Rig, state_of

BAD_IDS = [
    (torch.tensor([1.0]), "expected int64 or int32, got torch.float32"),
    (torch.tensor([True]), "expected int64 or int32, got torch.bool"),
    (torch.tensor([1], dtype=torch.uint8), "got torch.uint8"),
    (torch.tensor([1], dtype=torch.int16), "got torch.int16"),
    (torch.empty(1, dtype=torch.int64, device="meta"), "expected device cpu, got meta"),
    (torch.tensor([[[1]]]), r"expected shape \[ids\], got \[1, 1, 1\]"),
    (torch.tensor(1), r"expected shape \[ids\], got \[\]"),
    ([1, 2.0], r"\[1\]: expected an integer, got 2.0"),
    ([True], r"\[0\]: expected an integer, got True"),
    ([1, None], r"\[1\]: expected an integer, got None"),
    ([1, "2"], r"\[1\]: expected an integer, got '2'"),
    ([[1]], r"\[0\]: expected an integer, got \[1\]"),
    ([torch.tensor(1)], r"\[0\]: expected an integer, got tensor\(1\)"),
    ([2**70], f"expected ids below 2\\*\\*63, got {2**70}"),
    (np.array([1.5]), r"expected integers of shape \[ids\], got float64 \[1\]"),
    (np.array([[1]]), r"got int64 \[1, 1\]"),
    (np.array([True]), r"got bool \[1\]"),
    ("12", "expected a tensor or a list of integers, got '12'"),
    (3, "got 3"),
    (None, "got None"),
    ({1, 2}, r"got \{1, 2\}"),
]
BAD_HOST_IDS = [
    ([0], r"virtual_ids\[0\]: expected 1 to 8, got 0"),
    ([3, 9], r"virtual_ids\[1\]: expected 1 to 8, got 9"),
    ([-1], r"virtual_ids\[0\]: expected 1 to 8, got -1"),
    ([4, 3, 5, 3], r"virtual_ids\[3\]: 3 is there twice"),
    (np.array([2**63 + 5], np.uint64), f"virtual_ids.*got {2**63 + 5}"),
    (np.array([2, 2], np.int8), r"virtual_ids\[1\]: 2 is there twice"),
]
BAD_COUNTS = [
    (-1, "expected 0 or more, got -1"),
    (True, "expected an integer, got True"),
    (2.0, "expected an integer, got 2.0"),
    ("2", "expected an integer, got '2'"),
    (None, "expected an integer, got None"),
    (np.True_, "expected an integer, got"),
    (np.float64(2), "expected an integer, got"),
    (np.array([1, 2]), r"expected an integer, got array\(\[1, 2\]\)"),
    (torch.tensor(2), "expected a host integer, got a tensor on cpu"),
]
BAD_POOL_COUNTS = [
    ([("a", 1)], r"page_counts: expected a dict of pages by pool name, got \[\('a', 1\)\]"),
    ({"b": 1}, r"page_counts: no pool 'b', the pools are \['a'\]"),
    ({"a": -1}, r"page_counts\['a'\]: expected 0 or more, got -1"),
    ({"a": 1.5}, r"page_counts\['a'\]: expected an integer, got 1.5"),
]
BAD_LIMITS = [
    ({"max_moves": -1}, "max_moves: expected 0 or more, got -1"),
    ({"max_bytes": 1.5}, "max_bytes: expected an integer, got 1.5"),
    ({"urgent": True, "max_moves": 3}, "urgent: .*max_moves=3"),
    ({"urgent": True, "max_bytes": 0}, "urgent: .*max_bytes=0"),
]


@pytest.fixture
def rig(backend) -> Rig:
    """Eight ids, of which 1 to 6 are live and 4 was freed."""
    rig = Rig.of(backend, 9, page_size=2)
    rig.alloc(6)
    rig.free([4])
    return rig


@pytest.fixture(autouse=True)
def unchanged(rig):
    before = state_of(rig.arena)
    yield
    assert state_of(rig.arena) == before
    rig.verify()


@pytest.mark.parametrize(("ids", "message"), BAD_IDS)
@pytest.mark.parametrize("call", ["free", "translate", "translate_tokens"])
def test_ids_of_a_wrong_kind(rig, call, ids, message):
    name = "token_ids" if call == "translate_tokens" else "virtual_ids"
    with pytest.raises(UsageError, match=f"{name}.*{message}"):
        getattr(rig.pool, call)(ids)


@pytest.mark.parametrize(("ids", "message"), BAD_HOST_IDS)
def test_host_ids_that_cannot_be_live(rig, ids, message):
    with pytest.raises(UsageError, match=message):
        rig.pool.free(ids)


@pytest.mark.parametrize("ids", [torch.arange(1, 7), [1, 2, 3, 5, 6, 7]])
def test_free_of_more_than_is_live(rig, ids):
    with pytest.raises(UsageError, match="virtual_ids: 6 pages, but pool 'a' has 5 live pages"):
        rig.pool.free(ids)


@pytest.mark.parametrize(("count", "message"), BAD_COUNTS)
@pytest.mark.parametrize("call", ["alloc", "try_alloc"])
def test_count_of_pages(rig, call, count, message):
    with pytest.raises(UsageError, match=f"page_count: {message}"):
        getattr(rig.pool, call)(count)


@pytest.mark.parametrize(("counts", "message"), BAD_POOL_COUNTS)
@pytest.mark.parametrize("call", ["fits", "alloc_many"])
def test_counts_by_pool(rig, call, counts, message):
    with pytest.raises(UsageError, match=message):
        getattr(rig.arena, call)(counts)


@pytest.mark.parametrize(("limits", "message"), BAD_LIMITS)
def test_limits_of_a_flush(rig, limits, message):
    for owner in (rig.pool, rig.arena):
        with pytest.raises(UsageError, match=message):
            owner.flush(**limits)


def test_unknown_pool(rig):
    with pytest.raises(UsageError, match=r"no pool 'b', the pools are \['a'\]"):
        rig.arena["b"]


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (torch.zeros(3, dtype=torch.float32), "out: expected an int64 or int32 tensor"),
        ([0, 0, 0], "out: expected an int64 or int32 tensor"),
        (torch.zeros(2, dtype=torch.int64), r"out: expected \[3\] on cpu, got \[2\]"),
        (torch.zeros((3, 1), dtype=torch.int64), r"out: expected \[3\] on cpu, got \[3, 1\]"),
        (torch.zeros(3, dtype=torch.int64, device="meta"), r"out: expected \[3\] on cpu.*meta"),
    ],
)
def test_out_of_a_translation(rig, out, message):
    with pytest.raises(UsageError, match=message):
        rig.pool.translate_tokens([1, 2, 3], out=out)


def test_usage_error_is_a_value_error():
    assert issubclass(UsageError, ValueError)
    assert issubclass(UsageError, AllocatorError)


@pytest.mark.parametrize("as_ids", [list, torch.tensor])
def test_debug_names_a_wrong_lease_at_the_call(backend, as_ids):
    rig = Rig.of(backend, 9, debug=True)
    rig.alloc(8)
    rig.free([6])
    before = state_of(rig.arena)
    with pytest.raises(UsageError, match=r"virtual_ids\[1\]: id 6 of pool 'a' is not allocated"):
        rig.pool.lease(as_ids([3, 6]))
    with pytest.raises(UsageError, match=r"virtual_ids\[0\]: expected 1 to 8, got 9"):
        rig.pool.lease(as_ids([9]))
    assert state_of(rig.arena) == before


@pytest.mark.parametrize("ids", [torch.ones(2), [9], [0], [1, 1], "12", torch.ones(1, 1).long()])
def test_wrong_argument_of_a_lease_pins_nothing(backend, ids):
    rig = Rig.of(backend, 9)
    rig.alloc(8)
    before = state_of(rig.arena)
    with pytest.raises(UsageError, match="virtual_ids"):
        rig.pool.lease(ids)
    assert state_of(rig.arena) == before

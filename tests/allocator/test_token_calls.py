"""Token calls with wrong arguments, and what the right ones cost the host."""

import statistics
from time import perf_counter_ns

import pytest
import torch

from kvdefrag import Arena, PoolSpec, UsageError

from .rig import state_of
from .test_tokens import rig_of


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda pool: pool.free_tokens([8, 9], 2), "page_count: expected 1"),
        (lambda pool: pool.free_tokens([3], 1), r"token_ids\[0\]: expected 8"),
        (lambda pool: pool.free_tokens([8, 32], 2), "token 32 is of id 4"),
        (lambda pool: pool.free_token_run([9, 10]), r"token_ids\[0\]: expected token 0"),
        (lambda pool: pool.free_token_run([8, 10]), r"token_ids\[1\]: expected token 1"),
        (lambda pool: pool.free_token_run([*range(8, 16)] * 2), "1 is there twice"),
        (lambda pool: pool.decode([32], 0), "token 32 is of id 4"),
        (lambda pool: pool.decode([15, 16], 0), "page_count: expected 1"),
        (lambda pool: pool.extend([4], [3], [11], 0, 0), r"prefix_lens\[0\]"),
        (lambda pool: pool.extend([4], [5], [12], 0, 1), r"last_tokens\[0\]: expected token 3"),
        (lambda pool: pool.extend([4], [5], [35], 0, 1), "token 35 is of id 4"),
        (lambda pool: pool.extend([4], [9], [11], 2, 5), "page_count: expected 1"),
        (lambda pool: pool.extend([4], [9], [11], 1, 6), "token_count: expected 5"),
    ],
)
def test_debug_raises_in_the_call(backend, call, message):
    rig = rig_of(backend, 9, 8, debug=True)
    rig.pool.alloc(3)
    before = state_of(rig.arena)
    with pytest.raises(UsageError, match=message):
        call(rig.pool)
    assert state_of(rig.arena) == before


@pytest.mark.parametrize("call", [
    lambda pool: pool.alloc_tokens(-1),
    lambda pool: pool.alloc_tokens(2**31),
    lambda pool: pool.decode([8], 2),
    lambda pool: pool.decode(torch.zeros(2), 1),
    lambda pool: pool.extend([1], [2, 3], [4], 0, 1),
    lambda pool: pool.extend(torch.tensor([1], dtype=torch.int32), [2], [4], 0, 1),
    lambda pool: pool.extend([1], [2], [8], 2, 1),
    lambda pool: pool.extend([], [], [], 0, 1),
    lambda pool: pool.free_token_run(torch.zeros(2, 2, dtype=torch.int64)),
    lambda pool: pool.free_token_run(torch.arange(8, 80)),
])  # fmt: skip
def test_bad_arguments_change_nothing(backend, call):
    rig = rig_of(backend, 9, 8)
    rig.pool.alloc(3)
    before = state_of(rig.arena)
    with pytest.raises(UsageError):
        call(rig.pool)
    assert state_of(rig.arena) == before


def host_time(calls, repeats: int = 41) -> float:
    """The median host time of ``calls()``, in nanoseconds."""
    times = []
    for _ in range(repeats):
        started = perf_counter_ns()
        calls()
        times.append(perf_counter_ns() - started)
    return statistics.median(times)


def test_cost_does_not_grow_with_the_lists():
    """``free_token_run`` and ``decode`` beside lists of 1,000 and of 1,000,000 pages."""
    times = {}
    for pages in (1_000, 1_000_000):
        arena = Arena((2 * pages + 200) * 8, [PoolSpec("a", 8, page_size=4)], "cpu", "host")
        pool = arena["a"]
        ids = pool.alloc(2 * pages)
        pool.free(ids[:pages].clone())
        last = pool.alloc_tokens(64)[3::4]

        def step(pool=pool, last=last):
            fresh = pool.decode(last, 16)
            pool.free_token_run(fresh.repeat_interleave(4))

        times[pages] = host_time(step)
        assert arena.stats().pools["a"].hole_pages >= pages - 20
    # Ten times would be a list walked: that is a thousand times more pages.
    assert times[1_000_000] < 10 * times[1_000], times

"""Pools of an engine that owns its tensors and copies its pages itself."""

import pytest
import torch

from kvdefrag import Arena, PoolSpec
from kvdefrag.allocator.testing import stamp_pages, wrong_pages


class Engine:
    """Per-layer tensors, and the tables as they are when the mover is called."""

    def __init__(self, num_pages: int) -> None:
        self.layers = [torch.zeros(num_pages, width, dtype=torch.int32) for width in (3, 5)]
        self.calls: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.seen: list[list[int]] = []
        self.arena: Arena | None = None

    def __call__(self, source_pages: torch.Tensor, target_pages: torch.Tensor) -> None:
        self.calls.append((source_pages.clone(), target_pages.clone()))
        self.seen.append(self.arena["a"].physical_to_virtual.tolist())
        for layer in self.layers:
            layer[target_pages] = layer[source_pages]


def engine_arena(backend: str) -> tuple[Engine, Arena]:
    engine = Engine(11)
    engine.arena = Arena(11 * 32, [PoolSpec("a", 32, mover=engine)], "cpu", backend)
    return engine, engine.arena


def test_mover_runs_after_the_tables(backend):
    engine, arena = engine_arena(backend)
    pool = arena["a"]
    ids = pool.alloc(8)
    for layer in engine.layers:
        layer[pool.translate(ids)] = ids[:, None].to(torch.int32)
    pool.free(ids[1:3])
    assert pool.flush(urgent=True).moves == 2
    ((sources, targets),) = engine.calls
    assert [words.dtype for words in (sources, targets)] == [torch.int64] * 2
    assert [sources.tolist(), targets.tolist()] == [[8, 7], [2, 3]]
    assert engine.seen == [[0, 1, 8, 7, 4, 5, 6, -1, -1, -1, -1]]
    kept = ids[[0, 3, 4, 5, 6, 7]]
    for layer in engine.layers:
        assert (layer[pool.translate(kept)] == kept[:, None]).all()
    arena.check(deep=True)


def test_no_moves_no_mover(backend):
    engine, arena = engine_arena(backend)
    ids = arena["a"].alloc(8)
    arena["a"].free(ids[6:])
    arena["a"].flush()
    assert engine.calls == []


def test_no_buffer_where_every_pool_has_a_mover(backend):
    _, arena = engine_arena(backend)
    assert arena.buffer is None
    assert arena["a"].pages is None
    arena.prewarm()
    for helper in (stamp_pages, wrong_pages):
        with pytest.raises(ValueError, match="'a' has no pages"):
            helper(arena["a"], torch.tensor([1]))


def test_size_of_a_missing_buffer_is_free_of_charge():
    arena = Arena(1 << 45, [PoolSpec("a", 1 << 33, mover=print)], "cpu")
    assert arena["a"].available() == 4095


def test_mover_beside_a_pool_in_the_buffer(backend):
    moved = []
    specs = [
        PoolSpec("a", 8, mover=lambda sources, targets: moved.append(sources.tolist())),
        PoolSpec("b", 8, grows="down"),
    ]
    arena = Arena(20 * 8, specs, "cpu", backend)
    ids = {name: arena[name].alloc(6) for name in "ab"}
    stamp_pages(arena["b"], ids["b"])
    for name in "ab":
        arena[name].free(ids[name][:2])
    results = arena.flush(urgent=True)
    assert [result.moves for result in results.values()] == [2, 2]
    assert moved == [[6, 5]]
    assert wrong_pages(arena["b"], ids["b"][2:]) == []


def test_neighbour_with_a_mover_makes_room(backend):
    moved = []
    specs = [
        PoolSpec("a", 8),
        PoolSpec("b", 8, grows="down", mover=lambda *pairs: moved.append(pairs)),
    ]
    arena = Arena(12 * 8, specs, "cpu", backend)
    arena["a"].alloc(6)
    ids = arena["b"].alloc(5)
    arena["b"].free(ids[:2])
    arena["a"].alloc(1)
    assert [[pages.tolist() for pages in pairs] for pairs in moved] == [[[7], [11]]]


def test_movers_cost_no_more_launches_than_the_copy(backend):
    flushes = []
    for mover in (None, lambda sources, targets: None):
        arena = Arena(88, [PoolSpec("a", 8, mover=mover)], "cpu", backend)
        arena["a"].free(arena["a"].alloc(8)[:3])
        before = arena.stats()
        arena["a"].flush(urgent=True)
        after = arena.stats()
        flushes.append(after.launches - before.launches)
        assert after.device_to_host_copies - before.device_to_host_copies == 1
        assert after.host_to_device_copies - before.host_to_device_copies == 1
        assert (after.moves, after.bytes_moved) == (3, 24)
    assert flushes[1] <= flushes[0]

"""Every baseline beside a plain dict of bytes and the formula of what fits."""

import random

import pytest
import torch

from kvdefrag import CorruptState, OutOfPages, PoolSpec, UsageError
from kvdefrag.perf.baseline_arena import BaselineArena
from kvdefrag.perf.baselines import POLICIES, walk

from ..allocator.formula import Layout, ceil

PACKING = ("scalar", "batched", "eager")
LAYOUTS = {
    "one up": Layout(331, (PoolSpec("first", 8),)),
    "one down": Layout(331, (PoolSpec("first", 7, grows="down"),)),
    "two": Layout(803, (PoolSpec("first", 8), PoolSpec("second", 19, grows="down"))),
    "two, few ids": Layout(
        803, (PoolSpec("first", 24, grows="down"), PoolSpec("second", 5, virtual_pages=70))
    ),
}
STEPS = 100
SPLIT = 0.6


class Oracle:
    """A baseline, and the bytes that each of its live ids must hold."""

    def __init__(self, policy, layout, seed, split=None):
        self.random = random.Random(seed)
        self.layout = layout
        self.policy = policy
        buffer = torch.zeros(layout.total_bytes, dtype=torch.uint8)
        self.arena = BaselineArena(buffer, layout.specs, POLICIES[policy], split)
        self.model = {spec.name: {} for spec in layout.specs}

    def room(self, name):
        """Pages of pool `name` that must be granted."""
        live = {pool: len(ids) for pool, ids in self.model.items()}
        if self.policy in PACKING:
            return self.layout.available(name, live)
        if self.policy == "static":
            pool = self.arena[name]
            slots = (pool.pages.numel() - pool.spec.page_bytes) // pool.spec.page_bytes
            return min(slots, len(pool.virtual_to_physical) - 1) - live[name]
        return self.room_beside_live_pages(name)

    def room_beside_live_pages(self, name):
        """Nothing moves: every free page of this grid that is not beyond a neighbour's page."""
        pool = self.arena[name]
        low, high = self.layout.sink_bytes, self.layout.total_bytes
        for other in self.arena.pools.values():
            places = [int(other.virtual_to_physical[i]) for i in self.model[other.spec.name]]
            if other is pool or not places:
                continue
            if other.spec.grows == "up":
                low = (max(places) + 1) * other.spec.page_bytes
            else:
                high = min(places) * other.spec.page_bytes
        size = pool.spec.page_bytes
        free = high // size - ceil(low, size) - len(self.model[name])
        return max(0, min(free, len(pool.free_ids)))

    def step(self):
        name = self.random.choice(list(self.model))
        action = self.random.choice(("alloc", "alloc", "free", "free", "many", "flush", "over"))
        room, live = self.room(name), self.model[name]
        if action == "alloc":
            count = self.random.randint(0, room)
            assert self.arena.fits({name: count})
            self.granted(name, self.arena[name].try_alloc(count), count)
        elif action == "over":
            assert self.arena[name].try_alloc(room + 1) is None
            assert not self.arena.fits({name: room + 1})
        elif action == "free" and live:
            ids = self.random.sample(sorted(live), self.random.randint(1, len(live)))
            self.arena[name].free(torch.tensor(ids))
            for virtual in ids:
                del live[virtual]
        elif action == "many":
            self.alloc_many()
        elif action == "flush":
            self.arena[name].flush()
        self.check()

    def alloc_many(self):
        asked = {name: self.random.randint(0, self.room(name)) for name in self.model}
        fits = self.arena.fits(asked)
        if self.policy in PACKING:
            live = {name: len(ids) for name, ids in self.model.items()}
            assert fits == self.layout.fits(live, asked)
        if self.policy == "static" or len(asked) == 1:
            assert fits
        if not fits:
            with pytest.raises(OutOfPages):
                self.arena.alloc_many(asked)
            return
        for name, ids in self.arena.alloc_many(asked).items():
            self.granted(name, ids, asked[name])

    def granted(self, name, ids, count):
        fresh = ids.tolist()
        assert len(set(fresh)) == len(fresh) == count
        assert not self.model[name].keys() & set(fresh)
        pool = self.arena[name]
        for virtual in fresh:
            mark = self.random.randbytes(pool.spec.page_bytes)
            place = int(pool.virtual_to_physical[virtual])
            pool.pages[place] = torch.frombuffer(bytearray(mark), dtype=torch.uint8)
            self.model[name][virtual] = mark

    def check(self):
        self.arena.check(deep=True)
        for name, live in self.model.items():
            pool = self.arena[name]
            assert pool.live_pages == len(live)
            ids = torch.tensor(sorted(live), dtype=torch.int64)
            for virtual, page in zip(ids.tolist(), pool.translate(ids).tolist(), strict=True):
                assert pool.pages[page].numpy().tobytes() == live[virtual]
            if self.policy == "eager":
                assert len(pool.holes) == 0


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("policy", POLICIES)
def test_bytes_tables_and_grants_are_those_of_the_oracle(policy, layout):
    split = SPLIT if policy == "static" else None
    moves = 0
    for seed in range(2):
        oracle = Oracle(policy, LAYOUTS[layout], seed, split)
        for _ in range(STEPS):
            oracle.step()
        moves += oracle.arena.stats().moves
    assert (moves > 0) == (policy in PACKING)


@pytest.mark.parametrize("policy", PACKING)
def test_a_neighbour_is_packed_when_it_is_in_the_way(policy):
    arena = BaselineArena(
        torch.zeros(800, dtype=torch.uint8),
        [PoolSpec("a", 8), PoolSpec("b", 8, grows="down")],
        POLICIES[policy],
    )
    ids = arena["a"].alloc(99)
    arena["a"].free(ids[:40])
    assert arena.fits({"b": 40})
    assert not arena.fits({"b": 41})
    assert arena["b"].alloc(40).tolist() == list(range(1, 41))
    stats = arena.stats()
    assert (stats.moves, stats.bytes_moved) == (40, 320)
    assert stats.layout_version == stats.flushes_with_moves == stats.flush_calls == 1
    # The scalar walk reads the hole list and every moved page, the batched one the list alone.
    assert stats.device_to_host_copies == (41 if policy == "scalar" else 1)
    assert stats.pools["a"].hole_pages == 0
    assert stats.pools["a"].peak_hole_pages == 40


@pytest.mark.parametrize(("policy", "split"), [("static", 0.5), ("unpacked", None)])
def test_what_does_not_move_cannot_lend_its_holes(policy, split):
    arena = BaselineArena(
        torch.zeros(816, dtype=torch.uint8),
        [PoolSpec("a", 8), PoolSpec("b", 8, grows="down")],
        POLICIES[policy],
        split,
    )
    ids = arena["a"].alloc(50)
    arena["a"].free(ids[:49])
    assert arena["b"].try_alloc(52) is None
    assert arena["b"].try_alloc(50) is not None
    arena["a"].free(ids[49:])
    # All holes are at the frontier now: shared memory gives them back, a fixed split does not.
    assert (arena["b"].try_alloc(51) is not None) == (policy == "unpacked")


def test_the_walk_is_that_of_a_list():
    rng = random.Random(1)
    for _ in range(200):
        span = rng.randint(1, 30)
        holes = sorted(rng.sample(range(span), rng.randint(0, span)))
        live = [depth for depth in range(span) if depth not in holes]
        pairs = list(walk(holes, span))
        packed = sorted(set(live) - {s for s, _ in pairs} | {t for _, t in pairs})
        assert packed == list(range(len(live)))
        assert [s for s, _ in pairs] == [d for d in reversed(live) if d >= len(live)]


def test_tables_that_disagree_are_found():
    arena = BaselineArena(torch.zeros(80, dtype=torch.uint8), [PoolSpec("a", 8)], POLICIES["eager"])
    ids = arena["a"].alloc(4)
    arena.check(deep=True)
    arena["a"].virtual_to_physical[ids[0]] = 2
    with pytest.raises(CorruptState, match="not inverse"):
        arena.check(deep=True)


def test_a_part_without_a_page_is_refused():
    specs = [PoolSpec("a", 8), PoolSpec("b", 40, grows="down")]
    with pytest.raises(UsageError, match="'b'"):
        BaselineArena(torch.zeros(200, dtype=torch.uint8), specs, POLICIES["static"], 0.7)

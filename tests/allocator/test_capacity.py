"""What is promised is granted, nothing else is, and a refusal changes nothing."""

import random
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvdefrag import Arena, OutOfPages, PoolSpec, UsageError
from kvdefrag.allocator.invariants import byte_map
from kvdefrag.allocator.testing import stamp_pages, wrong_pages

from .formula import Layout, layouts
from .rig import Rig, by_backend, examples, state_of

KINDS = ["alloc", "alloc", "alloc_many", "free", "free", "flush", "budget", "arena flush"]


class Walk:
    """Random calls, each compared with the formula."""

    def __init__(self, backend: str, layout: Layout, seed: int) -> None:
        self.layout = layout
        self.arena = Arena(layout.total_bytes, layout.specs, "cpu", backend)
        self.live = {spec.name: [] for spec in layout.specs}
        self.random = random.Random(seed)

    @property
    def counts(self) -> dict[str, int]:
        return {name: len(ids) for name, ids in self.live.items()}

    def step(self) -> None:
        kind = self.random.choice(KINDS)
        name = self.random.choice(list(self.live))
        pool = self.arena[name]
        if kind == "alloc":
            self.alloc(name)
        elif kind == "alloc_many":
            self.alloc_many()
        elif kind == "free":
            self.free(name)
        elif kind == "budget":
            pool.flush(max_moves=self.random.randint(0, 3))
        else:
            (pool if kind == "flush" else self.arena).flush(urgent=True)

    def free(self, name: str) -> None:
        self.random.shuffle(self.live[name])
        gone = self.live[name][self.random.randint(0, len(self.live[name])) :]
        ids, pool = torch.tensor(gone, dtype=torch.int64), self.arena[name]
        if name in self.layout.borrowers:
            pool.release(ids)
        else:
            borrowers = self.layout.borrowers_of(name)
            pool.free(ids, {each: len(set(gone) & set(self.live[each])) for each in borrowers})
            for each in borrowers:
                self.live[each] = [virtual for virtual in self.live[each] if virtual not in gone]
        self.live[name] = [virtual for virtual in self.live[name] if virtual not in gone]

    def take(self, name: str, page_count: int) -> torch.Tensor:
        """`page_count` new ids, or of a pool that borrows ids that had no page there."""
        pool, owner = self.arena[name], self.layout.spec(name).ids_from
        if owner is None:
            return pool.alloc(page_count)
        unbound = [virtual for virtual in self.live[owner] if virtual not in self.live[name]]
        assert len(unbound) >= page_count
        ids = torch.tensor(unbound[-page_count:] if page_count else [], dtype=torch.int64)
        pool.bind(ids)
        return ids

    def alloc(self, name: str) -> None:
        available = self.layout.available(name, self.counts)
        asked = self.random.randint(0, available + 2)
        before = state_of(self.arena)
        if asked <= available:
            v2p, kept = self.arena[name].virtual_to_physical, list(self.live[name])
            pages = v2p[kept].tolist()
            self.got(name, self.take(name, asked))
            assert v2p[kept].tolist() == pages  # an own move never helps
            return
        if asked > self.layout.ids_left(name, self.counts, {}) and name in self.layout.borrowers:
            with pytest.raises(UsageError):
                self.arena[name].bind(torch.arange(1, asked + 1))
        else:
            with pytest.raises(OutOfPages) as raised:
                self.take(name, asked)
            assert (raised.value.asked, raised.value.available) == (asked, available)
        if name in self.layout.owners:
            assert self.arena[name].try_alloc(asked) is None
        assert state_of(self.arena) == before

    def alloc_many(self) -> None:
        asked = {
            name: self.random.randint(0, self.layout.available(name, self.counts) + 1)
            for name in self.random.sample(list(self.live), self.random.randint(1, len(self.live)))
        }
        for name in sorted(asked.keys() & set(self.layout.borrowers)):
            asked[name] += self.random.randint(0, asked.get(self.layout.spec(name).ids_from, 0) + 2)
        before = state_of(self.arena)
        fits = self.layout.fits(self.counts, asked)
        assert self.arena.fits(asked) == fits
        assert state_of(self.arena) == before
        owners = {name: pages for name, pages in asked.items() if name in self.layout.owners}
        if fits:
            for name, ids in self.arena.alloc_many(owners).items():
                assert len(ids) == asked[name]
                self.got(name, ids)
            # The new ids come first.
            for name in sorted(asked.keys() - owners.keys()):
                self.got(name, self.take(name, asked[name]))
        elif owners == asked:
            with pytest.raises(OutOfPages):
                self.arena.alloc_many(asked)
            assert state_of(self.arena) == before

    def got(self, name: str, ids: torch.Tensor) -> None:
        stamp_pages(self.arena[name], ids)
        self.live[name] += ids.tolist()

    def verify(self) -> None:
        for name, pool in self.arena.pools.items():
            assert wrong_pages(pool, torch.tensor(self.live[name], dtype=torch.int64)) == []
            assert pool.available() == self.layout.available(name, self.counts)
            assert pool.live_pages == len(self.live[name])
        self.arena.check(deep=True)


@pytest.mark.parametrize("kind", ["ends", "chain", "borrowing"])
def test_granted_exactly_where_the_formula_says(backend, kind):  # also reported fault 5
    drawn = layouts(by_backend(backend, 40, 12), kind != "ends", kind == "borrowing")

    @examples(backend, 20 if kind == "borrowing" else 150, 4, derandomize=kind == "borrowing")
    @given(drawn, st.integers(0, 2**32))
    def check(layout: Layout, seed: int) -> None:
        walk = Walk(backend, layout, seed)
        for _ in range(by_backend(backend, 40, 10)):
            walk.step()
            walk.verify()

    check()


def test_every_split_of_a_small_buffer():
    """All live counts of two pools: what is available, and the largest joint asking."""
    for sizes in ((1, 1), (2, 3), (3, 2), (5, 7)):
        specs = tuple(
            PoolSpec(name, page_bytes, grows=grows)
            for name, page_bytes, grows in zip("ab", sizes, ("up", "down"), strict=True)
        )
        layout = Layout(4 * max(sizes) + 11, specs)
        arena = Arena(layout.total_bytes, specs, "cpu")
        for first in range(arena["a"].available() + 1):
            arena.clear()
            arena["a"].alloc(first)
            for second in range(layout.available("b", {"a": first, "b": 0}) + 1):
                live = {"a": first, "b": second}
                for name in "ab":
                    assert arena[name].available() == layout.available(name, live)
                for more in range(arena["a"].available() + 2):
                    asked = {"a": more, "b": 1}
                    assert arena.fits(asked) == layout.fits(live, asked)
                if arena["b"].available():
                    arena["b"].alloc(1)


def test_ids_run_out_before_bytes(backend):
    rig = Rig.of(backend, 9, virtual_pages=3)
    rig.alloc(2)
    with pytest.raises(OutOfPages) as raised:
        rig.pool.alloc(2)
    assert (raised.value.asked, raised.value.available) == (2, 1)
    rig.free([1])
    rig.alloc(2)


def test_bytes_run_out_before_ids(backend):
    rig = Rig.of(backend, 9, virtual_pages=100)
    rig.alloc(7)
    with pytest.raises(OutOfPages) as raised:
        rig.pool.alloc(2)
    assert (raised.value.asked, raised.value.available) == (2, 1)
    rig.alloc(1)


@pytest.mark.parametrize("grows", ["up", "down"])
def test_survivors_of_three_quarters_freed_take_one_block(backend, grows):  # fault 29
    rig = Rig.of(backend, 4097, grows, page_bytes=4)
    ids = rig.alloc(4096)
    freed = torch.randperm(4096, generator=torch.Generator().manual_seed(29))[:3072]
    rig.free(ids[freed])
    block = range(1, 1025) if grows == "up" else range(3073, 4097)
    outside = sum(page not in block for page in rig.pages(rig.live["a"]))
    result = rig.flush(urgent=True)
    assert result.moves == outside <= 1024
    assert rig.span() == 1024
    bound = (rig.pool.physical_to_virtual[1:] > 0).nonzero().flatten() + 1
    assert torch.equal(bound, torch.tensor(block))
    assert rig.pool.available() == 3072


CHAIN = PoolSpec("a", 24), PoolSpec("c", 17, grows="float"), PoolSpec("b", 56, grows="down")


LENT = *CHAIN, PoolSpec("w", 12, grows="float", ids_from="b")


@pytest.mark.parametrize("specs", [CHAIN[::2], CHAIN, LENT], ids=["ends", "chain", "borrowing"])
def test_every_byte_is_accounted_for(backend, specs):  # fault 13
    walk = Walk(backend, Layout(1000, specs), seed=13)
    bands = [pool._band for pool in walk.arena.pools.values()]
    for number in range(by_backend(backend, 2000 if specs is LENT else 10_000, 60)):
        walk.step()
        parts = byte_map(bands, 1000)
        assert [parts[0][1], parts[-1][2]] == [0, 1000]
        assert all(low[2] == high[1] for low, high in pairwise(parts))
        held = {what: end - start for what, start, end in parts}
        assert held["sink"] == 56
        stats = walk.arena.stats().pools
        for spec in specs:
            span_bytes = stats[spec.name].span_pages * spec.page_bytes
            assert held.get(f"band of {spec.name!r}", 0) == span_bytes
        if number % 100 == 0:
            walk.verify()

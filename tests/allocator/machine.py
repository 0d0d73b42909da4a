"""The arena beside a plain dict of bytes, which knows nothing of holes or moves."""

import random
from collections.abc import Sequence
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)

from kvdefrag import Arena, OutOfPages

from .formula import NAMES, Layout, ceil, layouts

POOLS = st.sampled_from(NAMES)
TENTHS = st.sampled_from([1, 2, 2, 3, 4, 10])
"""Of what is available, or is live: in small steps, so that pools stay half full of holes."""
SHARES = st.tuples(*[TENTHS] * len(NAMES))
MOVE_LIMITS = st.integers(0, 6)
BYTE_LIMITS = st.none() | st.integers(0, 100)
GARBAGE = st.sampled_from([-(2**31), -1, 0, 2**31 - 1])
ID_FORMS = {
    "int64": lambda ids: torch.tensor(ids, dtype=torch.int64),
    "int32": lambda ids: torch.tensor(ids, dtype=torch.int32),
    "strided": lambda ids: torch.tensor(ids, dtype=torch.int64).repeat_interleave(3)[::3],
    "column": lambda ids: torch.tensor([ids, ids], dtype=torch.int32).t().contiguous()[:, 1],
    "list": list,
    "array": lambda ids: np.array(ids, dtype=np.uint16),
}
FORMS = st.sampled_from(sorted(ID_FORMS))
FLUSHES = ["idle", "urgent", "budget", "all idle", "all urgent", "all budget"]
DEVICE_FORMS = st.sampled_from(["int64", "int32", "strided", "column"])


class Machine(RuleBasedStateMachine):
    """The arena beside ``model``: the bytes of every live id, by pool."""

    backend: str
    most_pages: int
    floats = borrowing = debug = False
    moves = 0

    @initialize(data=st.data(), seed=st.integers(0, 2**16))
    def make(self, data: Any, seed: int) -> None:
        drawn = layouts(self.most_pages, self.floats, self.borrowing)
        self.start(data.draw(drawn), seed)

    def start(self, layout: Layout, seed: int) -> None:
        self.layout = layout
        self.arena = Arena(layout.total_bytes, layout.specs, "cpu", self.backend, self.debug)
        self.specs = {spec.name: spec for spec in self.layout.specs}
        self.model: dict[str, dict[int, bytes]] = {name: {} for name in self.specs}
        self.random = random.Random(seed)
        for name in self.layout.owners:
            self.alloc(name, self.random.randint(0, 10), 0, soft=False)

    @rule(name=POOLS, share=TENTHS, more=st.sampled_from([0, 0, 0, 1, 50]), soft=st.booleans())
    def alloc(self, name: str, share: int, more: int, soft: bool) -> None:
        name = self.owner(name)
        before, available = self.rows(), self.layout.available(name, self.live)
        page_count = ceil(available * share, 10) + more
        if page_count <= available:
            pool = self.arena[name]
            self.granted({name: (pool.try_alloc if soft else pool.alloc)(page_count)})
            return
        assert self.arena[name].try_alloc(page_count) is None
        with pytest.raises(OutOfPages) as refusal:
            self.arena[name].alloc(page_count)
        assert (refusal.value.asked, refusal.value.available) == (page_count, available)
        assert self.rows() == before

    @rule(shares=SHARES)
    def alloc_many(self, shares: Sequence[int]) -> None:
        asked = {
            name: self.layout.available(name, self.live) * share // 10
            for name, share in zip(self.layout.owners, shares, strict=False)
        }
        fits = self.layout.fits(self.live, asked)
        assert self.arena.fits(asked) == fits
        if fits:
            ids = self.arena.alloc_many(asked)
            assert {name: len(granted) for name, granted in ids.items()} == asked
            self.granted(ids)
        else:
            before = self.rows()
            with pytest.raises(OutOfPages):
                self.arena.alloc_many(asked)
            assert self.rows() == before

    @rule(name=POOLS, form=FORMS, share=TENTHS, then=st.sampled_from(["", "", "budget", *FLUSHES]))
    def free(self, name: str, form: str, share: int, then: str) -> None:
        name = self.owner(name)
        free = sorted(self.model[name].keys() - self.held(name))
        ids = self.random.sample(free, ceil(len(free) * share, 10))
        self.arena[name].free(ID_FORMS[form](ids))
        for virtual in ids:
            del self.model[name][virtual]
        if then:
            self.flush(name, then, max_moves=2, max_bytes=None)

    @rule(
        name=POOLS,
        mode=st.sampled_from(FLUSHES),
        max_moves=MOVE_LIMITS,
        max_bytes=BYTE_LIMITS,
    )
    def flush(self, name: str, mode: str, max_moves: int, max_bytes: int | None) -> None:
        names = list(self.specs) if mode.startswith("all") else [self.known(name)]
        owner = self.arena if mode.startswith("all") else self.arena[names[0]]
        limits: dict[str, Any] = {"urgent": mode.endswith("urgent")}
        if mode.endswith("budget"):
            limits = {"max_moves": max_moves, "max_bytes": max_bytes}
        needed = self.moves_within(names, limits)
        result = owner.flush(**limits)
        results = result if owner is self.arena else {names[0]: result}
        self.flushed(results, needed, whole=not mode.endswith("budget"))

    def moves_within(self, names: list[str], limits: dict[str, Any]) -> list[dict[str, int]]:
        """What a flush may move: a pool between two others packs to either side."""
        found = []
        for counts in product(*(self.out_of_place(name) for name in names)):
            moves_left, bytes_left = limits.get("max_moves"), limits.get("max_bytes")
            needed = dict(zip(names, counts, strict=True))
            for name in names:
                page_bytes = self.specs[name].page_bytes
                if moves_left is not None:
                    needed[name] = min(needed[name], moves_left)
                if bytes_left is not None:
                    needed[name] = min(needed[name], bytes_left // page_bytes)
                    bytes_left -= needed[name] * page_bytes
                if moves_left is not None:
                    moves_left -= needed[name]
            found.append(needed)
        return found

    @rule(name=POOLS, form=DEVICE_FORMS, garbage=GARBAGE, as_tokens=st.booleans())
    def translate(self, name: str, form: str, garbage: int, as_tokens: bool) -> None:
        name = self.known(name)
        most = self.layout.ids(self.specs[name]) + 2
        ids = [garbage, *(self.random.randint(0, most) for _ in range(9))]
        if as_tokens:
            self.translate_tokens(name, form, ids)
            return
        pages = self.arena[name].translate(ID_FORMS[form](ids))
        assert pages.dtype == torch.int64
        self.read(name, ids, pages.tolist())

    def translate_tokens(self, name: str, form: str, ids: list[int]) -> None:
        page_size = self.specs[name].page_size
        tokens = [virtual * page_size + virtual % page_size for virtual in ids[1:]]
        out = self.random.choice([None, torch.zeros(18, dtype=torch.int32)[::2]])
        places = self.arena[name].translate_tokens(ID_FORMS[form](tokens), out=out).tolist()
        for virtual, token, place in zip(ids[1:], tokens, places, strict=True):
            if virtual in self.model[name]:
                assert place % page_size == token % page_size
                self.read(name, [virtual], [place // page_size])
            else:
                assert place == 0

    @rule(name=POOLS)
    def write(self, name: str) -> None:
        name = self.known(name)
        if self.model[name]:
            self.stamp(name, self.random.choice(sorted(self.model[name])))

    @rule(sure=st.integers(0, 5))
    def clear(self, sure: int) -> None:
        if sure == 5:
            self.arena.clear()
            self.model = {name: {} for name in self.specs}

    @invariant()
    def pages_hold_their_bytes(self) -> None:
        taken = [(0, self.layout.sink_bytes)]
        for name, live in self.model.items():
            pool, page_bytes = self.arena[name], self.specs[name].page_bytes
            v2p, p2v = pool.virtual_to_physical.tolist(), pool.physical_to_virtual.tolist()
            bound = {virtual: page for virtual, page in enumerate(v2p) if page != -1}
            assert bound.keys() - {0} == live.keys()
            assert {page: virtual for page, virtual in enumerate(p2v) if virtual != -1} == {
                page: virtual for virtual, page in bound.items()
            }
            self.read(name, list(live), [v2p[virtual] for virtual in live])
            taken += [(v2p[virtual] * page_bytes, page_bytes) for virtual in live]
        taken.sort()
        for (low, size), (high, _) in pairwise(taken):
            assert low + size <= high

    @invariant()
    def capacity_is_the_formula(self) -> None:
        for name in self.specs:
            assert self.arena[name].available() == self.layout.available(name, self.live)
            assert self.arena[name].live_pages == len(self.model[name])
        assert self.arena.check(deep=True) is None

    @property
    def live(self) -> dict[str, int]:
        return {name: len(ids) for name, ids in self.model.items()}

    def known(self, name: str) -> str:
        """One of the pools."""
        return list(self.specs)[NAMES.index(name) % len(self.specs)]

    def owner(self, name: str) -> str:
        """One of the pools that have ids of their own."""
        return self.layout.owners[NAMES.index(name) % len(self.layout.owners)]

    def held(self, name: str) -> set[int]:
        """Ids of a pool that have a page in one that borrows them."""
        return {v for each in self.layout.borrowers_of(name) for v in self.model[each]}

    def rows(self) -> dict[str, list[int]]:
        return {name: self.arena[name].virtual_to_physical.tolist() for name in self.specs}

    def page(self, name: str, page: int) -> torch.Tensor:
        page_bytes = self.specs[name].page_bytes
        return self.arena.buffer[page * page_bytes : (page + 1) * page_bytes]

    def stamp(self, name: str, virtual: int) -> None:
        mark = self.random.randbytes(self.specs[name].page_bytes)
        place = self.arena[name].virtual_to_physical[virtual]
        self.page(name, int(place))[:] = torch.frombuffer(bytearray(mark), dtype=torch.uint8)
        self.model[name][virtual] = mark

    def granted(self, ids: dict[str, torch.Tensor]) -> None:
        for name, fresh in ids.items():
            assert fresh.dtype == torch.int64
            new = fresh.tolist()
            assert len(set(new)) == len(new)
            assert not self.model[name].keys() & set(new)
            for virtual in new:
                if self.specs[name].zero_on_alloc:
                    place = int(self.arena[name].virtual_to_physical[virtual])
                    assert not self.page(name, place).any()
                self.stamp(name, virtual)

    def read(self, name: str, ids: list[int], pages: list[int]) -> None:
        for virtual, page in zip(ids, pages, strict=True):
            if virtual in self.model[name]:
                assert self.page(name, page).numpy().tobytes() == self.model[name][virtual]
            else:
                assert page == 0

    def out_of_place(self, name: str) -> set[int]:
        """Live pages that do not stand in the block that a packed band takes, of one or of two."""
        spec, count = self.specs[name], len(self.model[name])
        rows = self.arena[name].virtual_to_physical.tolist()
        pages = [rows[virtual] for virtual in self.model[name]]
        if spec.grows == "up":
            starts = {ceil(self.layout.sink_bytes, spec.page_bytes)}
        elif spec.grows == "down":
            starts = {self.layout.total_bytes // spec.page_bytes - count}
        else:
            starts = {min(pages), max(pages) - count + 1} if pages else {0}
        return {sum(not start <= page < start + count for page in pages) for start in starts}

    def flushed(self, results: dict[str, Any], needed: list[dict[str, int]], whole: bool) -> None:
        moves = {name: result.moves for name, result in results.items()}
        assert moves in needed
        type(self).moves += sum(moves.values())
        for name, result in results.items():
            assert result.bytes_moved == result.moves * self.specs[name].page_bytes
            stats = self.arena.stats().pools[name]
            assert (result.stopped_by == "budget") == (stats.hole_pages > 0)
            if whole:
                assert stats.span_pages == len(self.model[name])
                assert self.out_of_place(name) == {0}

"""Any calls in any order over a world with forwards, blocks, leases and faults."""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvdefrag import CorruptState, OutOfPages, UsageError

from .damage import break_row, require_stopped
from .formula import NAMES, Layout, layouts
from .machine import BYTE_LIMITS, FLUSHES, ID_FORMS, MOVE_LIMITS, POOLS, SHARES, TENTHS
from .rig import state_of
from .world import World

INDEX = st.integers(0, 7)
FORMS = st.sampled_from(sorted(ID_FORMS))


class HazardMachine(RuleBasedStateMachine):
    """`world` is the arena and its model; which pages a rule takes follows from a seed."""

    backend: str
    most_pages: int
    floats = borrowing = debug = False
    world_type = World

    @initialize(data=st.data(), seed=st.integers(0, 2**16))
    def make(self, data: Any, seed: int) -> None:
        drawn = layouts(self.most_pages, self.floats, self.borrowing)
        self.start(data.draw(drawn), seed)

    def start(self, layout: Layout, seed: int) -> None:
        self.world = self.world_type(layout, self.backend, self.debug)
        self.random = random.Random(seed)
        for name in layout.owners:
            self.alloc(name, self.random.randint(1, 7), 0, soft=False)

    @rule(name=POOLS, share=TENTHS, more=st.sampled_from([0, 0, 0, 1, 50]), soft=st.booleans())
    def alloc(self, name: str, share: int, more: int, soft: bool) -> None:
        name, world = self.owner(name), self.world
        available = world.available(name)
        page_count = -(-available * share // 10) + more
        before = self.state()
        if world.alloc(name, page_count, soft) is None:
            with pytest.raises(OutOfPages) as refusal:
                world.arena[name].alloc(page_count)
            assert (refusal.value.asked, refusal.value.available) == (page_count, available)
            assert self.state() == before

    @rule(shares=SHARES)
    def alloc_many(self, shares: Sequence[int]) -> None:
        world = self.world
        asked = {
            name: world.available(name) * share // 10
            for name, share in zip(world.layout.owners, shares, strict=False)
        }
        before = self.state()
        if world.fits(asked):
            assert self.state() == before
            world.alloc_many(asked)
        else:
            with pytest.raises(OutOfPages):
                world.arena.alloc_many(asked)
            assert self.state() == before

    @rule(name=POOLS, share=TENTHS, form=FORMS)
    def free(self, name: str, share: int, form: str) -> None:
        name = self.owner(name)
        ids = self.some(name, share, held=False)
        self.world.free(name, ids, given=ID_FORMS[form](ids))

    @rule(name=POOLS, mode=st.sampled_from(FLUSHES), max_moves=MOVE_LIMITS, max_bytes=BYTE_LIMITS)
    def flush(self, name: str, mode: str, max_moves: int, max_bytes: int | None) -> None:
        limits: dict[str, Any] = {"urgent": mode.endswith("urgent")}
        if mode.endswith("budget"):
            limits = {"max_moves": max_moves, "max_bytes": max_bytes}
        done = self.world.flush(None if mode.startswith("all") else self.known(name), **limits)
        if mode.endswith("budget"):
            assert sum(result.moves for result in done.values()) <= max_moves
            moved = sum(result.bytes_moved for result in done.values())
            assert max_bytes is None or moved <= max_bytes

    @rule(reads=TENTHS, writes=st.integers(0, 3), shared=INDEX, as_tokens=st.booleans())
    def begin(self, reads: int, writes: int, shared: int, as_tokens: bool) -> None:
        """One to three pages written in a pool; now and then behind a fence that others share."""
        world = self.world
        written = {name: self.some(name, 10)[:writes] for name in world.live}
        if self.random.random() < 0.3:
            written.popitem()
        outstanding = world.in_flight.outstanding
        fence = outstanding[shared] if shared < len(outstanding) else None
        read = {name: self.some(name, reads) for name in world.live}
        world.in_flight.begin(read, written, as_tokens, fence)

    @rule(index=INDEX)
    def end(self, index: int) -> None:
        if unfinished := self.world.in_flight.unfinished:
            self.world.in_flight.finish(index % len(unfinished))

    @rule(index=INDEX, more=st.booleans())
    def block_or_unblock(self, index: int, more: bool) -> None:
        if more and len(self.world.blocks) < 3:
            self.world.block()
        elif self.world.blocks:
            self.world.unblock(index % len(self.world.blocks))

    @rule(name=POOLS, page_count=st.integers(0, 3))
    def lease(self, name: str, page_count: int) -> None:
        name = self.known(name)
        if len(self.world.leases[name]) < 3:
            self.world.lease(name, self.some(name, 10)[:page_count])

    @rule(name=POOLS, index=INDEX)
    def release(self, name: str, index: int) -> None:
        name = self.known(name)
        if leases := self.world.leases[name]:
            self.world.release(name, index % len(leases))

    @rule(name=POOLS, share=TENTHS, bad=st.sampled_from(["double", "unknown", "range", "zero"]))
    def free_refused(self, name: str, share: int, bad: str) -> None:
        """Good ids and a bad one: the good ones are freed, the bad one is named, once."""
        name, world = self.owner(name), self.world
        ids, most = self.some(name, share, held=False), world.layout.ids(world.spec(name))
        unbound = sorted(set(range(1, most + 1)) - world.live[name].keys() | set(ids))
        if len(ids) + 1 > len(world.live[name]) or not unbound:
            return
        worst = {"double": (ids or unbound)[0], "range": most + 1 + share, "zero": 0}
        wrong = worst.get(bad, self.random.choice(unbound))
        places = world.places(name, ids)
        world.arena[name].free(torch.tensor([*ids, wrong], dtype=torch.int64))
        world.forget(name, ids, places)
        with pytest.raises(UsageError, match=rf"pool '{name}'.*virtual id {wrong}\b"):
            world.arena.check()

    @rule(name=POOLS, kind=INDEX, look=st.sampled_from(["free", "flush", "deep"]))
    def break_and_repair(self, name: str, kind: int, look: str) -> None:
        """One row is flipped: it is found, everything stops, and only what it names is lost."""
        name, world = self.known(name), self.world
        if not world.live[name]:
            return
        # The model cannot tell what a forward writes through a flipped row, nor which of two
        # claimants a flush moved while a lease held the other.
        world.drain()
        if any(world.leases.values()) and look == "flush":
            look = "deep"
        victim = self.some(name, 10)[0]
        places = dict(
            zip(world.live[name], world.places(name, list(world.live[name])), strict=True)
        )
        lost = break_row(world, name, victim, kind)
        met = self.find_fault(name, victim, look)
        require_stopped(world, met)
        self.repair(name, places, {victim} if look == "flush" else lost, lost)

    def find_fault(self, name: str, victim: int, look: str) -> bool:
        """Whether a call met the fault, and not only the recount from the tables."""
        arena, met = self.world.arena, False
        try:
            if look == "free":
                pool = arena[name]
                borrowed = name in self.world.layout.borrowers
                (pool.release if borrowed else pool.free)(torch.tensor([victim]))
            elif look == "flush":
                arena.flush(urgent=True)
            arena.check()
        except CorruptState:
            met = True
        with pytest.raises(CorruptState, match=name):
            arena.check(deep=True)
        assert met or look != "free"
        return met

    def repair(self, name: str, places: dict[int, int], least: set[int], most: set[int]) -> None:
        """Between the `least` and the `most` ids are lost: a move may settle what another row says.

        `places`: where all live ids were. Borrowers lose the pages of ids that are lost.
        """
        world = self.world
        before = {other: world.rows(other).copy() for other in world.live}
        report = world.arena.repair()
        lost = {}
        for other, live in world.live.items():
            ambiguous = report.pools[other].ambiguous
            lost[other] = {v for entry in ambiguous for v in entry.virtual_ids} & live.keys()
        assert least <= lost[name] <= most
        lenders = {spec.name: spec.ids_from for spec in world.layout.specs}
        for other, rows in before.items():
            if other != name:
                orphans = lost[name] if lenders[other] == name else set()
                assert lost[other] == orphans & world.live[other].keys()
            old = places if other == name else rows
            world.forget(other, list(lost[other]), [old[virtual] for virtual in lost[other]])
            kept = list(world.live[other])
            assert np.array_equal(world.rows(other)[kept], rows[kept])
        world.arena.check(deep=True)
        for other in world.live:
            assert world.arena[other].available() <= world.room(other)
        report.release()

    @rule(sure=st.integers(0, 7))
    def drain(self, sure: int) -> None:
        if sure == 7:
            self.world.drain()

    @rule(sure=st.integers(0, 7))
    def clear(self, sure: int) -> None:
        leases = any(self.world.leases.values())
        if sure == 7 and leases:
            with pytest.raises(UsageError):
                self.world.arena.clear()
        elif sure == 7:
            self.world.clear()

    @invariant()
    def all_is_well(self) -> None:
        self.world.check()

    def some(self, name: str, share: int, held: bool = True) -> list[int]:
        """That many tenths of the live ids, in a random order; perhaps not those that are held."""
        live = self.world.live[name].keys()
        live = sorted(live if held else live - self.world.held(name))
        return self.random.sample(live, -(-len(live) * share // 10))

    def state(self) -> Any:
        stats = self.world.arena.stats()
        return state_of(self.world.arena), stats.pools, stats.fence_waits, stats.move_blocks

    def known(self, name: str) -> str:
        """One of the pools."""
        return list(self.world.live)[NAMES.index(name) % len(self.world.live)]

    def owner(self, name: str) -> str:
        """One of the pools that have ids of their own."""
        owners = self.world.layout.owners
        return owners[NAMES.index(name) % len(owners)]

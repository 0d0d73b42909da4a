"""The machine with forwards, leases, blocks and faults, over pools that borrow ids."""

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule

from kvdefrag import UsageError

from .formula import NAMES, Layout
from .hazard_machine import HazardMachine
from .lending_world import LendingWorld, tensor
from .machine import POOLS, SHARES, TENTHS


class LendingHazards(HazardMachine):
    """Every rule of `HazardMachine`, and those of pools that borrow."""

    floats = borrowing = True
    world_type = LendingWorld
    world: LendingWorld

    def start(self, layout: Layout, seed: int) -> None:
        super().start(layout, seed)
        for name in layout.borrowers:
            self.bind(name, self.random.randint(2, 7), 0)

    def borrower(self, name: str) -> str:
        """One of the pools that borrow."""
        borrowers = self.world.layout.borrowers
        return borrowers[NAMES.index(name) % len(borrowers)]

    @rule(name=POOLS, share=TENTHS, more=st.sampled_from([0, 0, 0, 1]))
    def bind(self, name: str, share: int, more: int) -> None:
        name = self.borrower(name)
        unbound = self.world.unbound(name)
        self.random.shuffle(unbound)
        before = self.state()
        ids = unbound[: -(-self.world.available(name) * share // 10) + more]
        if not self.world.bind(name, ids):
            assert self.state() == before

    @rule(name=POOLS, share=TENTHS, dense=st.booleans())
    def retire(self, name: str, share: int, dense: bool) -> None:
        name = self.borrower(name)
        ids = self.some(name, share)
        among = [*ids, *self.world.unbound(name)[:3], 0, -1, *ids[:2]]
        self.random.shuffle(among)
        self.world.retire(name, ids, None if dense else among)

    @rule(name=POOLS, share=TENTHS, grouped=st.booleans())
    def free_all(self, name: str, share: int, grouped: bool) -> None:
        name = self.owner(name)
        self.world.free_all(name, self.some(name, share), grouped)

    @rule(shares=SHARES)
    def what_fits_is_granted(self, shares: tuple[int, ...]) -> None:
        """Answers are those of the formula; while pages may move, they are kept in any order."""
        world, layout = self.world, self.world.layout
        asked: dict[str, int] = {}
        for name, share in zip(world.live, shares, strict=False):
            lent = asked.get(layout.spec(name).ids_from or "", 0)
            asked[name] = (world.available(name) + lent) * share // 10
        before: Any = self.state()
        fits = world.fits(asked)
        assert self.state() == before
        if fits and not (world.blocks or any(world.leases.values())):
            for name in layout.owners:
                assert world.alloc(name, asked[name]) is not None
            for name in layout.borrowers:
                assert world.bind(name, world.unbound(name)[::-1][: asked[name]])

    @rule(name=POOLS, share=TENTHS)
    def free_held(self, name: str, share: int) -> None:
        """What another pool holds is named and stays, with good ids beside it."""
        name, world = self.owner(name), self.world
        ids, held = self.some(name, share, held=False), sorted(world.held(name))
        if not held:
            return
        wrong = self.random.choice(held)
        places = world.places(name, ids)
        world.arena[name].free(tensor([*ids, wrong]))
        world.forget(name, ids, places)
        with pytest.raises(UsageError, match=rf"pool '{name}'.*virtual id {wrong}\b"):
            world.arena.check()

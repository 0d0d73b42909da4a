"""What pools with borrowed ids refuse: named in the call or at the next look, with no trace."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import strategies as st
from hypothesis.stateful import rule

from kvdefrag import UsageError

from .borrowing_machine import BorrowingMachine
from .machine import POOLS, TENTHS
from .rig import state_of

FREES = ["ids", "tokens", "run"]
WRONG_BINDS = ["bound", "twice", "not live", "range"]
WRONG_RELEASES = ["unbound", "twice", "range"]
WRONG_COUNTS = ["ids", "tokens", "cascade"]


class RefusingMachine(BorrowingMachine):
    """Calls with one wrong id or a wrong count among good ones.

    With `debug` nothing happens; else the good ids are served and the wrong one is named later.
    """

    def refused(
        self, kind: str, call: Callable[[], object], message: str, at_once: bool = False
    ) -> bool:
        """Whether `call` was refused after the good ids had been served."""
        self.done[f"refused {kind}"] += 1
        before = state_of(self.arena)
        if self.debug or at_once:
            with pytest.raises(UsageError):
                call()
            assert state_of(self.arena) == before
            return False
        call()
        with pytest.raises(UsageError, match=message):
            self.arena.check()
        return True

    @rule(name=POOLS, share=TENTHS, kind=st.sampled_from(FREES), grouped=st.booleans())
    def free_held(self, name: str, share: int, kind: str, grouped: bool) -> None:
        """An id that a borrower still holds stays, the others are freed."""
        name = self.owner(name)
        held = self.held(name)
        if not held:
            return
        good = [v for v in self.some(name, share) if v not in held]
        wrong = self.random.choice(sorted(held))
        ids = [*good, wrong]
        self.random.shuffle(ids)

        def call() -> None:
            if not grouped:
                self.free_in(name, ids, kind)
                return
            with self.arena.free_group():
                for part in (ids[::2], ids[1::2]):
                    self.free_in(name, part, kind)

        if self.refused("held", call, rf"pool '{name}'.*virtual id {wrong}\b"):
            self.gone(name, good)

    @rule(name=POOLS, share=TENTHS, kind=st.sampled_from(WRONG_BINDS))
    def bind_wrong(self, name: str, share: int, kind: str) -> None:
        name = self.borrower(name)
        unbound, most = self.unbound(name), self.layout.ids(self.specs[name])
        good = unbound[: max(0, self.layout.available(name, self.live) - 1) * share // 10]
        lost = sorted(set(range(1, most + 1)) - self.model[self.lender(name)].keys())
        wrong = {
            "bound": sorted(self.model[name])[:1],
            "twice": good[:1],
            "not live": lost[:1],
            "range": [self.random.choice([0, -1, most + 1])],
        }[kind]
        if len(good) + 1 > self.layout.available(name, self.live) or not wrong:
            return
        ids = torch.tensor([*good, *wrong], dtype=torch.int64)
        message = rf"pool '{name}'.*virtual id {wrong[0]}\b"
        if self.refused(kind, lambda: self.arena[name].bind(ids), message):
            self.granted({name: torch.tensor(good, dtype=torch.int64)})

    @rule(name=POOLS)
    def more_than_are_live(self, name: str) -> None:
        name = self.borrower(name)
        pool, live = self.arena[name], len(self.model[name])
        owner = self.arena[self.lender(name)]
        ids = torch.arange(1, live + 2)
        for call in (
            lambda: pool.release(ids),
            lambda: pool.release(ids, live + 1),
            lambda: pool.release_tokens(ids, live + 1),
            lambda: pool.release([], 1),
            lambda: pool.bind(torch.arange(1, len(self.unbound(name)) + 2)),
            lambda: owner.free(ids[:1], {name: 2}),
            lambda: owner.free(ids, {name: live + 1}),
            lambda: owner.free(torch.arange(1, owner.live_pages + 2), {name: 0}),
            lambda: pool.alloc(1),
            lambda: pool.free(ids),
            lambda: pool.free_tokens(ids, 1),
            lambda: owner.bind(ids[:1]),
            lambda: owner.release(ids[:1]),
            lambda: self.arena.alloc_many({name: 1}),
        ):
            self.refused("call", call, "", at_once=True)

    @rule(name=POOLS, share=TENTHS, kind=st.sampled_from(WRONG_RELEASES))
    def release_wrong(self, name: str, share: int, kind: str) -> None:
        """Without a count every id must have a page here."""
        name = self.borrower(name)
        good, unbound = self.some(name, share), self.unbound(name)
        wrong = {"unbound": unbound[:1], "twice": good[:1], "range": [10**9]}[kind]
        if len(good) + 1 > len(self.model[name]) or not wrong:
            return
        ids = torch.tensor([*good, *wrong], dtype=torch.int64)
        message = rf"pool '{name}'.*virtual id {wrong[0]}\b"
        if self.refused(f"release {kind}", lambda: self.arena[name].release(ids), message):
            self.gone(name, good)

    @rule(name=POOLS, share=TENTHS, kind=st.sampled_from(WRONG_COUNTS), less=st.booleans())
    def count_wrong(self, name: str, share: int, kind: str, less: bool) -> None:
        """Of too many pages some stay, as many as were not counted; else all go."""
        name = self.borrower(name)
        lender, ids, spare = self.lender(name), self.some(name, share), self.unbound(name)
        if kind == "cascade":
            # What other pools hold as well would be refused besides.
            borrowers = self.layout.borrowers_of(lender)
            others = {v for each in borrowers if each != name for v in self.model[each]}
            ids, spare = ([v for v in each if v not in others] for each in (ids, spare))
        count, mixed = len(ids) + (-1 if less else 1), [*ids, *spare[:1]]
        if not ids or count > len(self.model[name]):
            return

        def call() -> None:
            pool = self.arena[name]
            if kind == "cascade":
                self.arena[lender].free(torch.tensor(mixed, dtype=torch.int64), {name: count})
            elif kind == "tokens":
                pool.release_tokens(torch.tensor(self.tokens(name, mixed * 2)), count)
            else:
                pool.release(torch.tensor([*mixed, -1, 0], dtype=torch.int64), count)

        at_once = kind == "cascade" and count > len(mixed)
        if self.refused(f"count {kind}", call, r"page|virtual id", at_once):
            self.resynced(name, ids, len(ids) - less)
            if kind == "cascade":
                self.resynced(lender, mixed, len(mixed) - less)

    def resynced(self, name: str, ids: list[int], count: int) -> None:
        """`count` of `ids` have gone, whichever they are; what stays is as it was."""
        rows = self.arena[name].virtual_to_physical.tolist()
        gone = [v for v in ids if rows[v] == -1]
        assert len(gone) == count
        self.gone(name, gone)

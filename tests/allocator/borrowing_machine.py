"""The machine over chains whose pools borrow ids of one another: bind, release, cascade, groups."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from hypothesis.stateful import rule

from kvdefrag import OutOfPages, UsageError

from .formula import NAMES, Layout, ceil
from .machine import FORMS, ID_FORMS, POOLS, SHARES, TENTHS, Machine
from .rig import state_of


def gaps(machine: "BorrowingMachine", ids: list[int], others: list[int]) -> list[int]:
    """`ids` with some of them twice, padding, and `others` that have no page, in any order."""
    choice = machine.random
    more = [each for each in (*others, 0, -1, -1) if choice.random() < 0.5]
    mixed = [*ids, *choice.sample(ids, choice.randint(0, len(ids))), *more]
    choice.shuffle(mixed)
    return mixed


class BorrowingMachine(Machine):
    """Every rule of `Machine`, and those of pools that borrow. `done`: pages by what was done."""

    floats = borrowing = True
    done: Counter[str]

    def start(self, layout: Layout, seed: int) -> None:
        super().start(layout, seed)
        for name in layout.borrowers:
            self.bind(name, self.random.randint(2, 6), 0, "int64")

    def borrower(self, name: str) -> str:
        """One of the pools that borrow."""
        return self.layout.borrowers[NAMES.index(name) % len(self.layout.borrowers)]

    def lender(self, name: str) -> str:
        return self.specs[name].ids_from or name

    def unbound(self, name: str) -> list[int]:
        """Ids that could get a page in a borrower, in any order."""
        found = sorted(self.model[self.lender(name)].keys() - self.model[name].keys())
        self.random.shuffle(found)
        return found

    def some(self, name: str, share: int) -> list[int]:
        live = sorted(self.model[name])
        return self.random.sample(live, ceil(len(live) * share, 10))

    def tokens(self, name: str, ids: list[int]) -> list[int]:
        """A token of every page in `ids`, any one; -1 stays."""
        size = self.specs[name].page_size
        return [v if v < 0 else v * size + self.random.randrange(size) for v in ids]

    @rule(name=POOLS, share=TENTHS, more=st.sampled_from([0, 0, 0, 1, 50]), form=FORMS)
    def bind(self, name: str, share: int, more: int, form: str) -> None:
        name = self.borrower(name)
        pool, unbound = self.arena[name], self.unbound(name)
        available = self.layout.available(name, self.live)
        count = ceil(available * share, 10) + more
        ids = unbound[:count]
        if count <= available:
            self.done["bind"] += count
            pool.bind(ID_FORMS[form](ids))
            self.granted({name: torch.tensor(ids, dtype=torch.int64)})
            return
        before = state_of(self.arena)
        self.done["no room"] += len(ids) == count
        if len(ids) == count:
            with pytest.raises(OutOfPages) as refusal:
                pool.bind(ID_FORMS[form](ids))
            assert (refusal.value.asked, refusal.value.available) == (count, available)
        else:
            # More ids than there can be: the host knows without a look at them.
            with pytest.raises(UsageError, match="virtual_ids"):
                pool.bind(torch.tensor([*ids, *[1] * (count - len(ids))], dtype=torch.int64))
        assert state_of(self.arena) == before

    @rule(shares=SHARES)
    def what_fits_is_granted(self, shares: tuple[int, ...]) -> None:
        """New ids of all owners and, at once, pages for them in the borrowers."""
        asked = {}
        for name, share in zip(self.specs, shares, strict=False):
            room = self.layout.available(name, self.live)
            # Now and then more than there are ids, though not more than there is room.
            lent = asked.get(self.lender(name), 0) + 2 if name in self.layout.borrowers else 0
            asked[name] = (room + lent) * share // 10
        before, fits = state_of(self.arena), self.layout.fits(self.live, asked)
        assert self.arena.fits(asked) == fits
        assert state_of(self.arena) == before
        if fits:
            for name in self.layout.owners:
                self.granted({name: self.arena[name].alloc(asked[name])})
            for name in self.layout.borrowers:
                # New ids are the last of the model.
                rows = [v for v in self.model[self.lender(name)] if v not in self.model[name]]
                ids = torch.tensor(rows[len(rows) - asked[name] :], dtype=torch.int64)
                self.arena[name].bind(ids)
                self.granted({name: ids})
                self.done["joint"] += asked[name]

    @rule(name=POOLS, share=TENTHS, form=FORMS, kind=st.sampled_from(["dense", "gaps", "tokens"]))
    def release(self, name: str, share: int, form: str, kind: str) -> None:
        name = self.borrower(name)
        ids = self.some(name, share)
        self.done[kind] += len(ids)
        self.release_in(name, ids, kind, form)
        self.gone(name, ids)

    def release_in(self, name: str, ids: list[int], kind: str, form: str = "int64") -> None:
        pool = self.arena[name]
        if kind == "dense":
            pool.release(ID_FORMS[form](ids))
            return
        mixed = gaps(self, ids, self.unbound(name))
        if kind == "tokens":
            pool.release_tokens(torch.tensor(self.tokens(name, mixed)).long(), len(ids))
        else:
            given = mixed if form in ("list", "array") else torch.tensor(mixed).long()
            pool.release(given, len(ids))

    def gone(self, name: str, ids: list[int]) -> None:
        for virtual in ids:
            del self.model[name][virtual]

    @rule(name=POOLS, share=TENTHS, kind=st.sampled_from(["ids", "tokens", "run"]))
    def cascade(self, name: str, share: int, kind: str) -> None:
        """Free what others may hold, and say how much of it they do."""
        name = self.owner(name)
        ids = self.some(name, share)
        held = self.held_of(name, ids)
        # Where nobody holds a page, nothing need be said.
        counts = {each: len(at) for each, at in held.items() if at or self.random.random() < 0.5}
        self.free_in(name, ids, kind, counts)
        self.done[f"cascade {kind}"] += sum(counts.values())
        for each, at in held.items():
            self.gone(each, at)
        self.gone(name, ids)

    def held_of(self, name: str, ids: list[int]) -> dict[str, list[int]]:
        """Which of `ids` have a page in each of the pools that borrow them."""
        borrowers = self.layout.borrowers_of(name)
        return {each: [v for v in ids if v in self.model[each]] for each in borrowers}

    def free_in(self, name: str, ids: list[int], kind: str, cascade: Any = None) -> None:
        pool, size = self.arena[name], self.specs[name].page_size
        if kind == "run":
            run = [v * size + token for v in ids for token in range(size)]
            run = run[: len(run) - self.random.randrange(size)] if run else run
            pool.free_token_run(torch.tensor(run).long(), cascade)
        elif kind == "tokens":
            tokens = self.tokens(name, ids * 2)
            self.random.shuffle(tokens)
            pool.free_tokens(torch.tensor(tokens).long(), len(ids), cascade)
        else:
            pool.free(torch.tensor(ids, dtype=torch.int64), cascade)

    @rule(name=POOLS, shares=SHARES, stated=st.booleans(), cascaded=st.booleans())
    def group(self, name: str, shares: tuple[int, ...], stated: bool, cascaded: bool) -> None:
        """Frees in the owner and releases in its borrowers, in any order, within one group."""
        name = self.owner(name)
        freed = self.some(name, shares[0])
        held = self.held_of(name, freed)
        parts: dict[str, list[int]] = {name: freed}
        calls = self.frees_of(name, freed, held if cascaded else {})
        for each, share in zip(held, shares[1:], strict=False):
            more = [v for v in self.some(each, share // 2) if v not in freed]
            parts[each] = held[each] + more
            calls += self.releases_of(each, more if cascaded else parts[each], stated)
        self.random.shuffle(calls)
        # In debug mode a count that is stated must be true of what was named.
        counts = {each: len(ids) for each, ids in parts.items() if ids} if stated else None
        with self.arena.free_group(counts):
            for call in calls:
                call()
        for each, ids in parts.items():
            self.gone(each, ids)
        self.done["cascaded group" if cascaded else "group"] += sum(map(len, held.values()))

    def frees_of(
        self, name: str, ids: list[int], held: dict[str, list[int]]
    ) -> list[Callable[[], None]]:
        """`ids` in one call or two."""
        cut = self.random.randint(0, len(ids))
        found = []
        for part in (ids[:cut], ids[cut:]):
            counts = {each: len(set(part) & set(at)) for each, at in held.items()}
            kind = self.random.choice(["ids", "tokens", "run"])
            found.append(lambda p=part, k=kind, c=counts: self.free_in(name, p, k, c or None))
        return found

    def releases_of(self, name: str, ids: list[int], shared: bool) -> list[Callable[[], None]]:
        """`ids` in one call or two; pages may be `shared` by those with gaps."""
        cut = self.random.randint(0, len(ids))
        parts = [ids[:cut], ids[cut:]]
        kinds = [self.random.choice(["dense", "gaps", "tokens"]) for _ in parts]
        if shared and "dense" not in kinds:
            parts[1] = parts[1] + self.random.sample(parts[0], len(parts[0]) // 2)
        return [
            lambda p=part, k=kind: self.release_in(name, p, k)
            for part, kind in zip(parts, kinds, strict=True)
            if part
        ]

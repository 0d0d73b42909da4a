"""A world whose pools may borrow ids of one another."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from kvdefrag import OutOfPages

from .world import World


def tensor(ids: Sequence[int]) -> torch.Tensor:
    return torch.tensor(ids, dtype=torch.int64)


class LendingWorld(World):
    """What `World` offers, and the calls that concern a pool and those that borrow from it."""

    def unbound(self, name: str) -> list[int]:
        """Ids that could get a page in a borrower."""
        lender = self.spec(name).ids_from
        return sorted(self.live[lender].keys() - self.live[name].keys())

    def bind(self, name: str, ids: list[int]) -> bool:
        """Whether pages were granted to `ids`, which have none: just where it was promised."""
        promised = self.available(name)
        if len(ids) > promised:
            with self.moves(idle=False), pytest.raises(OutOfPages) as refusal:
                self.arena[name].bind(tensor(ids))
            assert (refusal.value.asked, refusal.value.available) == (len(ids), promised)
            return False
        with self.moves(idle=False):
            self.arena[name].bind(tensor(ids))
        self.counts["bind"] += len(ids)
        self._granted(name, ids, len(ids))
        return True

    def retire(self, name: str, ids: list[int], among: Sequence[int] | None = None) -> None:
        """Release `ids`, found `among` others that have no page here."""
        places = self.places(name, ids)
        self.check_bytes(name, ids)
        if among is None:
            self.arena[name].release(tensor(ids))
        else:
            self.arena[name].release(tensor(among), len(ids))
        self.counts["retire"] += len(ids)
        self.forget(name, ids, places)

    def free_all(self, name: str, ids: list[int], grouped: bool = False) -> None:
        """Free `ids` and, by a cascade or in one group, what the borrowers hold of them."""
        parts = {each: [v for v in ids if v in self.live[each]] for each in self.borrowers(name)}
        parts[name] = ids
        places = {each: self.places(each, part) for each, part in parts.items()}
        for each, part in parts.items():
            self.check_bytes(each, part)
        counts = {each: len(part) for each, part in parts.items() if each != name and part}
        if grouped:
            self._free_in_group(name, ids, counts)
        else:
            self.arena[name].free(tensor(ids), counts)
        self.counts["free"] += 1
        self.counts["cascaded"] += sum(counts.values())
        for each, part in parts.items():
            self.forget(each, part, places[each])

    def _free_in_group(self, name: str, ids: list[int], counts: dict[str, int]) -> None:
        """The owner's free is the first call or the last one, by turns."""
        calls: list[Any] = [
            lambda e=each, c=count: self.arena[e].release(tensor(ids), c)
            for each, count in counts.items()
        ]
        place = len(calls) * (self.counts["free"] % 2)
        calls.insert(place, lambda: self.arena[name].free(tensor(ids)))
        with self.arena.free_group():
            for call in calls:
                call()

    def borrowers(self, name: str) -> list[str]:
        """The pools that borrow the ids of `name`."""
        return self.layout.borrowers_of(name)

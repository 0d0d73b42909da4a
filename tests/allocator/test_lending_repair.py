"""Repair where pools borrow ids: the owner's tables decide first, and nothing is guessed."""

import random
from collections import Counter

import numpy as np
import pytest
import torch

from kvdefrag import CorruptState, PoolSpec, UsageError
from kvdefrag.allocator.testing import ManualFence

from .damage import break_row
from .damaged_arena import P2V, V2P
from .formula import NAMES, Layout, ceil
from .lending_chains import CHAINS, RUNS
from .lending_hazards import LendingHazards
from .lending_world import LendingWorld, tensor
from .rig import Rig, by_backend, state_of

SPECS = (
    PoolSpec("W", 8, grows="float", ids_from="A"),
    PoolSpec("A", 8),
    PoolSpec("B", 8, grows="down", ids_from="A"),
)
LENT = "ids are live or free: pool {!r}: id 8 has a page here but is not live in 'A'"


class LentRig(Rig):
    """Ids 1 to 12 of A but 2 and 3 are live; of these W has 4 to 9, and B 6 to 12 without 10.

    With a hole or more in every pool; id and page are the same in A.
    """

    def __init__(self, backend: str) -> None:
        super().__init__(backend, *SPECS, total_bytes=8 * 50)
        ids = self.alloc(12, "A")
        self.bind("W", ids[2:9])
        self.bind("B", ids[5:12])
        self.release("W", [3])
        self.release("B", [10])
        self.free([2, 3], "A")

    def bind(self, name: str, ids: torch.Tensor) -> None:
        self.arena[name].bind(ids)
        self.got(name, ids)
        self.verify()

    def release(self, name: str, ids: list[int]) -> None:
        self.arena[name].release(ids)
        self.live[name] = [virtual for virtual in self.live[name] if virtual not in ids]
        self.verify()

    def homes(self) -> dict[str, dict[int, int]]:
        """Where every live id is."""
        return {
            name: dict(zip(live, self.pages(live, name), strict=True))
            for name, live in self.live.items()
        }

    def fill(self) -> None:
        """Take every page: of the owner a third, so that both borrowers can have the rest."""
        self.alloc(self.arena["A"].available() // 3, "A")
        for name in "WB":
            rows = self.arena[name].virtual_to_physical
            unbound = [virtual for virtual in self.live["A"] if int(rows[virtual]) == -1]
            self.bind(name, tensor(unbound[: self.arena[name].available()]))


def at(table: str, name: str, row: int, value: int):
    return lambda rig: getattr(rig.arena[name], table).__setitem__(row, value)


def orphan(rig: LentRig) -> None:
    """Id 3 gets a page of W that was free, and the owner knows nothing of it."""
    place = int(rig.arena["W"].physical_to_virtual[1:].argmin()) + 1
    rig.arena["W"].virtual_to_physical[3] = place
    rig.arena["W"].physical_to_virtual[place] = 3


def drift(name: str, counter: str, by: int):
    def inject(rig: LentRig) -> None:
        band = rig.arena[name]._band
        owner = band.ids if counter == "bound" else band
        setattr(owner, counter, getattr(owner, counter) + by)

    return inject


# What breaks, a finding, and the ids that are lost by pool.
DAMAGES = {
    "owner v2p": (at(V2P, "A", 8, -1), LENT.format("W"), {"A": {8}, "W": {8}, "B": {8}}),
    "owner p2v": (at(P2V, "A", 8, -1), "v2p[8] is 8, p2v there is -1", {n: {8} for n in "AWB"}),
    "owner's id on two": (
        at(V2P, "A", 5, 8), "v2p[5] is 8, p2v there is 8", {"A": {5, 8}, "W": {5, 8}, "B": {8}},
    ),
    "owner's id of one": (at(V2P, "A", 11, -7), "'A': v2p[11] is -7", {"A": {11}, "B": {11}}),
    "owner's id of none": (at(P2V, "A", 1, 40), "'A': v2p[1] is 1", {"A": {1}}),
    "borrower v2p": (at(V2P, "W", 8, -1), "pool 'W': p2v[", {"W": {8}}),
    "borrower v2p far": (at(V2P, "B", 8, 2**62), "pool 'B': v2p[8] is", {"B": {8}}),
    "borrower without an owner": (orphan, "'W': id 3 has a page here", {}),
    "bound low": (drift("W", "bound", -1), "pool 'W'", {}),
    "bound high": (drift("B", "bound", 2), "pool 'B'", {}),
    "live": (drift("W", "live", 1), "pool 'W': the live counter", {}),
    "span": (drift("W", "span", 2), "pool 'W': a span of", {}),
}  # fmt: skip


SMALL = ("owner's id on two", "borrower v2p", "borrower without an owner", "bound high")
CASES = [
    *(("host", name, pending) for name in DAMAGES for pending in (False, True)),
    *(("triton", name, True) for name in SMALL),
]


@pytest.mark.parametrize(("backend", "name", "pending"), CASES)
def test_damage_is_named_and_repaired(backend, name, pending):
    inject, finding, lost = DAMAGES[name]
    rig, fence = LentRig(backend), ManualFence()
    if pending:
        rig.arena.forward_launched(fence)
        rig.arena.flush()
    homes = rig.homes()
    inject(rig)
    with pytest.raises(CorruptState) as raised:
        rig.arena.check(deep=True)
    assert any(finding in text for text in raised.value.violations)

    report = rig.arena.repair()
    for each, live in rig.live.items():
        named = {v for entry in report.pools[each].ambiguous for v in entry.virtual_ids}
        assert named & set(live) == lost.get(each, set())
        for virtual in lost.get(each, ()):
            live.remove(virtual)
            del homes[each][virtual]
    rig.verify()
    assert rig.homes() == homes

    aside = {(each, entry.page) for each in "AWB" for entry in report.pools[each].ambiguous}
    rig.fill()
    assert not lost.get("A", set()) & set(rig.live["A"])
    for each in "AWB":
        assert not {page for of, page in aside if of == each} & set(rig.pages(rig.live[each], each))
    report.release()
    fence.finish()
    rig.verify()
    rig.arena.flush(urgent=True)
    spans = {each: rig.span(each) for each in "AWB"}
    assert spans == {each: len(live) for each, live in rig.live.items()}
    stats = rig.arena.stats().pools
    assert stats["A"].free_ids == 49 - len(rig.live["A"])
    assert stats["W"].free_ids == len(rig.live["A"]) - len(rig.live["W"])


def test_a_sound_arena_is_not_touched(backend):
    rig = LentRig(backend)
    before = state_of(rig.arena)
    assert not rig.arena.repair().changed
    assert state_of(rig.arena) == before


@pytest.mark.parametrize("free", [False, True])
def test_an_id_set_aside_is_not_lent(backend, free):
    """It is refused until the report gives it back, and is a new id afterwards."""
    rig = LentRig(backend)
    rig.arena["A"].virtual_to_physical[8] = -1
    report = rig.arena.repair()
    for live in rig.live.values():
        live.remove(8)
    calls = (lambda: rig.arena["A"].free(tensor([8]))), (lambda: rig.arena["B"].bind(tensor([8])))
    calls[not free]()
    with pytest.raises(UsageError, match=r"virtual id 8\b"):
        rig.arena.check()
    rig.verify()
    report.release()
    assert 8 in rig.alloc(10, "A").tolist()
    rig.bind("W", tensor([8]))
    rig.bind("B", tensor([8]))


def sound_rows(world: LendingWorld) -> dict[str, dict[int, int]]:
    """What is certain in tables that may disagree: one page, one id, and an id that is live."""
    found: dict[str, dict[int, int]] = {}
    layout = world.layout
    for name in [*layout.owners, *layout.borrowers]:
        pool, spec = world.arena[name], layout.spec(name)
        v2p, p2v = pool.virtual_to_physical.tolist(), pool.physical_to_virtual.tolist()
        first = ceil(layout.sink_bytes, spec.page_bytes)
        page_claims, id_claims = Counter(v2p[1:]), Counter(p2v[1:])
        # A page that an id claims which is not live cannot be said to be another's alone.
        if spec.ids_from is not None:
            lent = found[spec.ids_from]
            page_claims = Counter(p for v, p in enumerate(v2p) if v in lent)
        found[name] = {
            v: page
            for v, page in enumerate(v2p)
            if v and first <= page < len(p2v)
            if page_claims[page] == id_claims[v] == 1 and p2v[page] == v
            if spec.ids_from is None or v in found[spec.ids_from]
        }
    return found


def damaged(backend: str, layout: Layout, rng: random.Random) -> LendingWorld:
    """A world after some calls, with one to four rows changed."""
    machine = type("OnBackend", (LendingHazards,), {"backend": backend})()
    machine.start(layout, rng.randrange(2**16))
    for _ in range(6):
        name, share = rng.choice(NAMES), rng.randint(1, 5)
        kind = rng.choice(["free_all", "retire", "bind", "alloc"])
        more = {"bind": (0,), "alloc": (0, True)}.get(kind, (False,))
        getattr(machine, kind)(name, share, *more)
    world = machine.world
    world.arena.check(deep=True)
    for _ in range(rng.randint(1, 4)):
        name = rng.choice(list(world.live))
        rows, num_pages = world.rows(name), world.arena[name].num_pages
        victims = [v for v in sorted(world.live[name]) if 0 < rows[v] < num_pages]
        if victims:
            break_row(world, name, rng.choice(victims), rng.randrange(8))
    return world


@pytest.mark.parametrize(("backend", "chain"), RUNS)
def test_what_is_certain_stays_and_all_comes_back(backend, chain):
    rng = random.Random(chain)
    for _ in range(by_backend(backend, 12, 1)):
        world = damaged(backend, CHAINS[chain], rng)
        certain, arena = sound_rows(world), world.arena
        report = arena.repair()
        arena.check(deep=True)
        for name, rows in certain.items():
            found = world.rows(name)
            bound = 1 + np.flatnonzero(found[1:] != -1)
            assert dict(zip(bound.tolist(), found[bound].tolist(), strict=True)) == rows
        report.release()
        arena.check(deep=True)
        for name in world.layout.owners:
            held = {each: len(certain[each]) for each in world.layout.borrowers_of(name)}
            arena[name].free(tensor(list(certain[name])), held)
        arena.flush(urgent=True)
        arena.check(deep=True)
        nothing = dict.fromkeys(world.live, 0)
        for name, stats in arena.stats().pools.items():
            assert (stats.span_pages, stats.live_pages, stats.pending_pages) == (0, 0, 0)
            assert arena[name].available() == world.layout.available(name, nothing)
        for name in world.layout.owners:
            spec = world.layout.spec(name)
            assert arena.stats().pools[name].free_ids == world.layout.ids(spec)

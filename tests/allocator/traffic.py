"""Traffic for a world: sequences of pages come and go, forwards read and write them.

Every choice follows from a seed and from what all replicas answer alike, so that many worlds can
be driven through the same calls; the time at which fences end is not among them.
"""

import random
from collections import OrderedDict
from typing import Any, Protocol

from kvdefrag import PoolSpec

from .formula import Layout

POOLS = ("kv", "state")
MOST_PAGES = 6
"""Pages that one sequence asks for at once."""


class Driven(Protocol):
    """One world, or several that are called alike. Calls are those of `World`."""

    def available(self, name: str) -> int: ...
    def fits(self, asked: dict[str, int]) -> bool: ...
    def alloc(self, name: str, page_count: int) -> list[int] | None: ...
    def alloc_many(self, asked: dict[str, int]) -> dict[str, list[int]]: ...
    def free(self, name: str, ids: list[int]) -> None: ...
    def bind(self, name: str, ids: list[int]) -> bool: ...
    def retire(self, name: str, ids: list[int], among: list[int]) -> None: ...
    def flush(self, name: str | None, limits: dict[str, Any]) -> None: ...
    def begin(self, reads: dict[str, list[int]], writes: dict[str, list[int]]) -> None: ...
    def block(self) -> None: ...
    def unblock(self) -> None: ...
    def lease(self, name: str, ids: list[int]) -> None: ...
    def release(self, name: str) -> None: ...


def two_pools(total_bytes: int, kv_bytes: int = 48, state_bytes: int = 112) -> Layout:
    """Pages of two sizes that share a buffer, with ids enough for all of it."""
    return Layout(
        total_bytes,
        (
            PoolSpec("kv", kv_bytes, page_size=4),
            PoolSpec("state", state_bytes, grows="down"),
        ),
    )


def chain_of(pools: int, total_bytes: int) -> Layout:
    """`two_pools`, and between them up to two floats that borrow the ids of the first."""
    kv, state = two_pools(total_bytes).specs
    floats = (
        PoolSpec("window", 80, page_size=4, grows="float", ids_from="kv"),
        PoolSpec("index", 16, page_size=4, grows="float", zero_on_alloc=True, ids_from="kv"),
    )
    return Layout(total_bytes, (kv, state, *floats[: pools - 2]))


class Traffic:
    """Sequences over `driven`. Evicts the oldest where there is no room, but keeps `floor` full.

    `occupancy`: live bytes as a part of what is not sink, now. `calls`: calls of the arena so far.
    """

    def __init__(self, driven: Driven, layout: Layout, seed: int, floor: float) -> None:
        self._driven = driven
        self._rng = random.Random(seed)
        self._page_bytes = {spec.name: spec.page_bytes for spec in layout.specs}
        self._usable = layout.total_bytes - layout.sink_bytes
        self._floor = floor
        self._sequences: OrderedDict[int, tuple[str, list[int]]] = OrderedDict()
        self._windows: dict[str, set[int]] = {name: set() for name in layout.borrowers}
        self._live_bytes = 0
        self._blocks = 0
        self._leases: list[str] = []
        self.calls = 0
        self.evictions = 0

    @property
    def held(self) -> bool:
        """Whether answers may depend on how far flushes came."""
        return bool(self._blocks or self._leases)

    @property
    def occupancy(self) -> float:
        return self._live_bytes / self._usable

    def fill(self) -> None:
        """Allocate until nothing fits."""
        for name in POOLS * 2:
            # Half of the room for the first pool, then all that is left.
            while pages := min(self._driven.available(name), MOST_PAGES):
                if name == "kv" and 2 * self._live_bytes > self._usable > 0:
                    break
                self._got(name, self._driven.alloc(name, pages))

    def step(self) -> None:
        """One to a few calls."""
        rng = self._rng
        kinds = (self._grow, self._grow_both, self._forward, self._flush, self._hold, self._let_go)
        weights: tuple[float, ...] = (40, 4, 25, 20, 0.4, 8)
        if self._windows:
            kinds, weights = (*kinds, self._slide), (*weights, 40)
        rng.choices(kinds, weights)[0]()

    def _grow(self) -> None:
        name = self._rng.choice(POOLS)
        pages = self._rng.randint(1, MOST_PAGES)
        if self._make_room(name, pages):
            self._got(name, self._driven.alloc(name, pages))
        elif not self.held:
            self.calls += 1
            assert self._driven.alloc(name, self._driven.available(name) + 1) is None

    def _grow_both(self) -> None:
        asked = {"kv": self._rng.randint(0, 3), "state": self._rng.randint(0, 2)}
        # Only while pages may move are they granted one after the other.
        lent = (
            {} if self.held else {name: self._rng.randint(0, asked["kv"]) for name in self._windows}
        )
        fit = self._make_room("kv", 3) and self._driven.fits({**asked, **lent})
        self.calls += 1
        if fit:
            granted = self._driven.alloc_many(asked)
            for name, ids in granted.items():
                if ids:
                    self._got(name, ids)
            for name, pages in lent.items():
                assert self._bind(name, granted["kv"][:pages])

    def _slide(self) -> None:
        """The last pages of a sequence have one in a window, others lose theirs."""
        name = self._rng.choice(list(self._windows))
        in_kv = [number for number, (pool, _) in self._sequences.items() if pool == "kv"]
        number = self._rng.choice(in_kv)
        ids = self._sequences[number][1]
        end = self._rng.randint(1, len(ids))
        wanted = ids[max(0, end - 3) : end]
        old = [virtual for virtual in ids if virtual in self._windows[name] - set(wanted)]
        if self._live_bytes - len(old) * self._page_bytes[name] < self._floor * self._usable:
            return
        gaps = [virtual for virtual in ids if virtual not in wanted]
        self._driven.retire(name, old, [*gaps, -1, 0, *old])
        self._windows[name] -= set(old)
        self._live_bytes -= len(old) * self._page_bytes[name]
        self.calls += 1
        new = [virtual for virtual in wanted if virtual not in self._windows[name]]
        if self._make_room(name, len(new)) and number in self._sequences:
            self._bind(name, new)

    def _bind(self, name: str, ids: list[int]) -> bool:
        self.calls += 1
        bound = self._driven.bind(name, ids)
        if bound:
            self._windows[name] |= set(ids)
            self._live_bytes += len(ids) * self._page_bytes[name]
        return bound

    def _got(self, name: str, ids: list[int] | None) -> None:
        assert ids is not None
        self.calls += 1
        number = next(reversed(self._sequences), 0) + 1
        self._sequences[number] = (name, ids)
        self._live_bytes += len(ids) * self._page_bytes[name]

    def _make_room(self, name: str, pages: int) -> bool:
        """Evict until `pages` fit; False where that would empty the arena too far."""
        while self._driven.available(name) < pages:
            oldest = list(self._sequences)[: max(1, len(self._sequences) // 4)]
            number = self._rng.choice(oldest)
            gone, ids = self._sequences[number]
            left = self._live_bytes - len(ids) * self._page_bytes[gone]
            held = {each: at & set(ids) for each, at in self._windows.items() if gone == "kv"}
            left -= sum(len(at) * self._page_bytes[each] for each, at in held.items())
            if left < self._floor * self._usable:
                return False
            del self._sequences[number]
            for each, at in held.items():
                self._windows[each] -= at
            self._driven.free(gone, ids)
            self._live_bytes = left
            self.calls += 1
            self.evictions += 1
        return True

    def _forward(self) -> None:
        """Writes the last page of some sequences, reads others."""
        running = self._rng.sample(sorted(self._sequences), min(4, len(self._sequences)))
        reads: dict[str, list[int]] = {name: [] for name in self._page_bytes}
        writes: dict[str, list[int]] = {name: [] for name in self._page_bytes}
        for turn, number in enumerate(running):
            name, ids = self._sequences[number]
            reads[name] += ids
            if turn < 2:
                writes[name] += ids[-1:]
            for each, at in self._windows.items() if name == "kv" else ():
                bound = [virtual for virtual in ids if virtual in at]
                reads[each] += bound
                writes[each] += bound[-1:] if turn < 2 else []
        self._driven.begin(reads, writes)
        self.calls += 1

    def _flush(self) -> None:
        rng = self._rng
        limits: dict[str, Any] = {"max_moves": rng.randint(0, 12)}
        if rng.random() < 0.1:
            limits = rng.choice([{"urgent": True}, {"max_bytes": 500}, {}])
        self._driven.flush(rng.choice([None, *self._page_bytes]), limits)
        self.calls += 1

    def _hold(self) -> None:
        self.calls += 1
        if self._rng.random() < 0.5 and self._blocks < 2:
            self._driven.block()
            self._blocks += 1
        elif len(self._leases) < 2:
            name, ids = self._sequences[self._rng.choice(sorted(self._sequences))]
            self._driven.lease(name, ids)
            self._leases.append(name)

    def _let_go(self) -> None:
        if self._blocks:
            self._driven.unblock()
            self._blocks -= 1
            self.calls += 1
        elif self._leases:
            self._driven.release(self._leases.pop(0))
            self.calls += 1

"""One world as traffic drives it."""

import random
from typing import Any

from .lending_world import LendingWorld


class Driver:
    """Passes calls on to `world`, whose fences end in its own time.

    `seed`: what that time follows from. `haste`: how often a fence ends, from 0 to 1.
    """

    def __init__(self, world: LendingWorld, seed: int, haste: float = 0.2) -> None:
        self.world = world
        self._rng = random.Random(seed)
        self._haste = haste

    def available(self, name: str) -> int:
        return self.world.available(name)

    def fits(self, asked: dict[str, int]) -> bool:
        return self.world.fits(asked)

    def alloc(self, name: str, page_count: int) -> list[int] | None:
        return self.world.alloc(name, page_count)

    def alloc_many(self, asked: dict[str, int]) -> dict[str, list[int]]:
        return self.world.alloc_many(asked)

    def free(self, name: str, ids: list[int]) -> None:
        if self.world.layout.borrowers_of(name):
            self.world.free_all(name, ids, grouped=self.world.counts["free"] % 3 == 0)
        else:
            self.world.free(name, ids)

    def bind(self, name: str, ids: list[int]) -> bool:
        return self.world.bind(name, ids)

    def retire(self, name: str, ids: list[int], among: list[int]) -> None:
        self.world.retire(name, ids, among)

    def flush(self, name: str | None, limits: dict[str, Any]) -> None:
        self.world.flush(name, **limits)

    def begin(self, reads: dict[str, list[int]], writes: dict[str, list[int]]) -> None:
        outstanding = self.world.in_flight.outstanding
        shared = self._rng.choice(outstanding) if outstanding else None
        shared = shared if self._rng.random() < 0.2 else None
        self.world.in_flight.begin(reads, writes, self._rng.random() < 0.5, shared)

    def block(self) -> None:
        self.world.block()

    def unblock(self) -> None:
        self.world.unblock(self._rng.randrange(len(self.world.blocks)))

    def lease(self, name: str, ids: list[int]) -> None:
        self.world.lease(name, ids)

    def release(self, name: str) -> None:
        self.world.release(name, self._rng.randrange(len(self.world.leases[name])))

    @property
    def held(self) -> bool:
        """Whether moves are blocked or pages leased."""
        return bool(self.world.blocks or any(self.world.leases.values()))

    def check(self) -> None:
        self.world.check()

    def drain(self) -> None:
        self.world.drain()

    def tick(self) -> None:
        """Time passes: now and then a fence ends, not always the oldest."""
        unfinished = self.world.in_flight.unfinished
        while unfinished and (len(unfinished) > 6 or self._rng.random() < self._haste):
            newest = len(unfinished) if self._rng.random() < 0.3 else 1
            self.world.in_flight.finish(self._rng.randrange(newest))

    def sample(self) -> None:
        """Check the bytes of a few pages."""
        for name, pages in self.world.live.items():
            self.world.check_bytes(name, self._rng.sample(list(pages), min(4, len(pages))))

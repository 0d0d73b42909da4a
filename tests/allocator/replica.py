"""Replicas: arenas that see the same calls while their fences end each in its own time."""

import hashlib
from collections.abc import Callable
from typing import Any

from .driver import Driver
from .formula import Layout
from .lending_world import LendingWorld
from .traffic import Traffic, two_pools

TOTAL_BYTES = 12_000
FLOOR = 0.9


TWO_POOLS = two_pools(TOTAL_BYTES)


def replica(seed: int, haste: float, backend: str = "host", layout: Layout = TWO_POOLS) -> Driver:
    """One replica; `haste` and `seed` say when its fences end, and nothing else."""
    return Driver(LendingWorld(layout, backend), seed, haste)


class Replicas:
    """Passes every call on to all replicas, and compares what they answer.

    While moves are blocked or pages leased they may answer differently: the least one counts.
    """

    def __init__(self, replicas: list[Driver]) -> None:
        self._replicas = replicas
        self.differed = 0

    def available(self, name: str) -> int:
        found = [each.available(name) for each in self._replicas]
        self.differed += len(set(found)) > 1
        assert len(set(found)) == 1 or self._held
        return min(found)

    def fits(self, asked: dict[str, int]) -> bool:
        found = {each.fits(asked) for each in self._replicas}
        assert len(found) == 1 or self._held
        return all(found)

    def alloc(self, name: str, page_count: int) -> Any:
        return self._same(lambda each: each.alloc(name, page_count))

    def alloc_many(self, asked: dict[str, int]) -> Any:
        return self._same(lambda each: each.alloc_many(asked))

    def bind(self, name: str, ids: list[int]) -> Any:
        return self._same(lambda each: each.bind(name, ids))

    def _same(self, call: Callable[[Driver], Any]) -> Any:
        first, *others = [call(each) for each in self._replicas]
        assert all(other == first for other in others)
        return first

    @property
    def _held(self) -> bool:
        return self._replicas[0].held

    def __getattr__(self, call: str) -> Callable[..., None]:
        """Calls that answer nothing."""

        def every(*arguments: Any) -> None:
            for each in self._replicas:
                getattr(each, call)(*arguments)

        return every


class Rank(Driver):
    """One replica of a group of processes; `least` takes the minimum over them."""

    def __init__(
        self,
        seed: int,
        haste: float,
        least: Callable[[int], int],
        layout: Layout = TWO_POOLS,
    ) -> None:
        super().__init__(replica(seed, haste, layout=layout).world, seed, haste)
        self._least = least
        self.answers = hashlib.sha256()

    def available(self, name: str) -> int:
        pages = super().available(name)
        if self.held:
            pages = self._least(pages)
        return self._noted("available", pages)

    def fits(self, asked: dict[str, int]) -> bool:
        fit = super().fits(asked)
        if self.held:
            fit = bool(self._least(fit))
        return self._noted("fits", fit)

    def alloc(self, name: str, page_count: int) -> list[int] | None:
        return self._noted("alloc", super().alloc(name, page_count))

    def alloc_many(self, asked: dict[str, int]) -> dict[str, list[int]]:
        return self._noted("alloc_many", super().alloc_many(asked))

    def bind(self, name: str, ids: list[int]) -> bool:
        return self._noted("bind", super().bind(name, ids))

    def _noted(self, call: str, answer: Any) -> Any:
        self.answers.update(f"{call} {answer};".encode())
        return answer


def drive(
    driven: Any,
    calls: int,
    seed: int,
    at: Callable[[int], None],
    every: int,
    layout: Layout = TWO_POOLS,
) -> Traffic:
    """Make `calls` calls; `at` runs after `every` so many, with all bytes checked."""
    traffic = Traffic(driven, layout, seed, FLOOR)
    traffic.fill()
    due = every
    while traffic.calls < calls:
        traffic.step()
        driven.tick()
        if traffic.calls >= due:
            driven.check()
            at(traffic.calls)
            due += every
    driven.drain()
    return traffic

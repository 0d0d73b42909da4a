"""A whole flush beside the baselines: tables alone as the holes grow, and with the pages' bytes.

Tables, lists and every byte are checked before a time is reported.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from kvdefrag.kernels.backend import choose_backend
from kvdefrag.perf.cycles import Cycle
from kvdefrag.perf.gpu_check_baselines import PlainCopyPool, pool_over
from kvdefrag.perf.gpu_check_clock import Clock
from kvdefrag.perf.gpu_check_flush import Ours, Packable, Scene
from kvdefrag.perf.interleaved import DEVICE, OURS, Meter, backend_name

ROUNDS = {1: 301, 16: 301, 256: 101, 4_096: 31, 65_536: 9}
THEIR_ROUNDS = {1: 101, 16: 101, 256: 51, 4_096: 11, 65_536: 3}
LEAST_PAGES = 64
TABLE_CASES = [
    *((OURS, holes, 0.25) for holes in ROUNDS),
    *((OURS, holes, 0.75) for holes in (256, 4_096)),
    *((name, holes, 0.25) for name in ("scalar", "batched") for holes in ROUNDS),
]

KIB = 1024
BYTE_CASES = [
    (16, 4 * KIB),
    (256, 4 * KIB),
    (4_096, 512),
    (16, 64 * KIB),
    (256, 64 * KIB),
    (16, 1024 * KIB),
]
BYTE_ROUNDS = 9


@pytest.mark.parametrize(("contender", "holes", "fragmentation"), TABLE_CASES)
def test_flush_without_copy(meter: Meter, contender: str, holes: int, fragmentation: float) -> None:
    baseline = "scalar" if contender == OURS else contender
    live_pages = max(LEAST_PAGES, round(holes / fragmentation))
    cycles = {name: Cycle(name, holes, live_pages) for name in (OURS, baseline)}
    ours, theirs, subject = cycles[OURS], cycles[baseline], cycles.pop(contender)
    (other,) = cycles.values()
    rounds = (ROUNDS if contender == OURS else THEIR_ROUNDS)[holes]
    meter.by_turns(partial(subject.prepare, "flush"), partial(other.prepare, "flush"), rounds)
    other.pool.check()
    assert ours.moves == theirs.moves
    meter.record("flush", contender, baseline, **subject.figures("flush"))


class Packing:
    """A contender on pages of its own; every round is checked before the next one starts."""

    def __init__(self, contender: str, moves: int, page_bytes: int) -> None:
        shape = (4 * moves + 1, page_bytes // 8)
        self.scene = Scene(
            torch.empty(shape, dtype=torch.int64, device=DEVICE), moves, Clock(DEVICE)
        )
        self.ours = Ours(self.scene.pages, "auto") if contender == OURS else None
        self.make: Callable[[], Packable] = partial(pool_over, self.scene.pages, contender)
        if contender == "batched" and DEVICE.type == "cuda":
            self.make = partial(self.make, kind=PlainCopyPool)
        self.pool: Packable | None = None
        self.moved = 0

    def prepare(self) -> Callable[[], None]:
        """Full of holes; every page holds its owner's mark."""
        self.check()
        if self.ours is not None:
            self.ours.arena.clear()
        self.pool = self.ours or self.make()
        self.scene.prepare(self.pool)
        return self.flush

    def flush(self) -> None:
        """What is timed."""
        assert self.pool is not None
        self.moved = self.pool.flush()

    def check(self) -> None:
        """Every byte after the last flush."""
        if self.pool is not None:
            assert self.scene.finding(self.pool, self.moved) == ""

    def counts(self) -> dict[str, Any]:
        """Launches and copies of one more flush."""
        if self.ours is None:
            return {}
        call = self.prepare()
        before = self.ours.arena.stats()
        call()
        after = self.ours.arena.stats()
        return {
            "launches": after.launches - before.launches,
            "d2h": after.device_to_host_copies - before.device_to_host_copies,
            "h2d": after.host_to_device_copies - before.host_to_device_copies,
        }


@pytest.mark.parametrize("contender", [OURS, "scalar", "batched"])
@pytest.mark.parametrize(("moves", "page_bytes"), BYTE_CASES)
def test_flush_with_bytes(meter: Meter, contender: str, moves: int, page_bytes: int) -> None:
    baseline = "batched" if contender == OURS else contender
    packings = {name: Packing(name, moves, page_bytes) for name in (OURS, baseline)}
    subject = packings.pop(contender)
    (other,) = packings.values()
    meter.by_turns(subject.prepare, other.prepare, BYTE_ROUNDS)
    other.check()
    counts = subject.counts()
    subject.check()
    meter.record(
        "flush",
        contender,
        baseline,
        op="flush with bytes",
        holes=2 * moves,
        moves=moves,
        pages_moved=moves,
        page_bytes=page_bytes,
        bytes_moved=moves * page_bytes,
        fragmentation=0.5,
        backend=backend_name(contender, choose_backend("auto", DEVICE).name),
        **counts,
    )

"""A small generated trace through kvdefrag and through each baseline.

The time is that of the whole replay, engine included; ``host_ms`` and the ratios are those of the
allocator's calls alone. A replay with every page compared comes first.
"""

from __future__ import annotations

import statistics
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from kvdefrag.perf.baselines import POLICIES
from kvdefrag.perf.geometries import DEFAULT_GEOMETRY, GEOMETRIES, plan_pools
from kvdefrag.perf.interleaved import DEVICE, OURS, Meter
from kvdefrag.perf.replay import ReplayOptions, replay_trace
from kvdefrag.perf.replay_compare import STATIC, Contender, comparison_row
from kvdefrag.perf.trace_generator import generate_trace

ROUNDS = 3
REQUESTS = 150
POOL_GIB = 20
SPLIT = 0.7
OPTIONS = ReplayOptions(running=16, device=DEVICE.type, verify="off")


class Runs:
    """One contender; `rows` holds a row for every replay."""

    def __init__(self, name: str) -> None:
        self.contender = Contender(name, POOL_GIB, SPLIT if name == STATIC else None)
        self.layout = plan_pools(GEOMETRIES[DEFAULT_GEOMETRY], POOL_GIB << 30, Fraction(1, 4096))
        self.requests = generate_trace(REQUESTS, seed=0)
        self.rows: list[dict[str, Any]] = []

    def run(self, options: ReplayOptions = OPTIONS) -> None:
        """One replay."""
        arena = self.contender.make(self.layout, options)
        result = replay_trace(arena, self.layout, self.requests, options)
        self.rows.append(comparison_row(self.contender, result, sync_us=0))

    def check(self) -> None:
        """Every page of one replay, and the figures that do not depend on time."""
        self.run(replace(OPTIONS, verify="full"))
        assert all(row["passed"] for row in self.rows)
        assert self.rows[-1]["pages_checked"] > 0
        for row in self.rows:
            for key in ("hit_rate", "moves", "evicted_pages", "device_to_host_copies"):
                assert row[key] == self.rows[0][key]

    def host_s(self, rounds: int) -> list[float]:
        """Seconds in the allocator in the last replays that were timed."""
        return [row["host_ms"]["total"] / 1e3 for row in self.rows[-1 - rounds : -1]]


@pytest.mark.parametrize("contender", [OURS, *POLICIES])
def test_replay(meter: Meter, contender: str) -> None:
    baseline = "scalar" if contender == OURS else contender
    runs = {name: Runs(name) for name in (OURS, baseline)}
    subject = runs.pop(contender)
    (other,) = runs.values()
    meter.by_turns(lambda: subject.run, lambda: other.run, ROUNDS)
    for each in (subject, other):
        each.check()
    meter.subject_s, meter.other_s = subject.host_s(ROUNDS), other.host_s(ROUNDS)
    row = subject.rows[-1]
    meter.record(
        "replay",
        contender,
        baseline,
        backend=row["backend"],
        moves=row["moves"],
        pages_moved=row["moves"],
        bytes_moved=row["bytes_moved"],
        flushes=row["flushes"],
        hit_rate=row["hit_rate"],
        waited_requests=row["waited_requests"],
        evicted_pages=sum(row["evicted_pages"].values()),
        d2h=row["device_to_host_copies"],
        host_ms=1e3 * statistics.median(meter.subject_s),
    )

"""Host time of alloc and free beside the baselines, as the lists grow.

A quarter of the pages is freed at random, the pool is packed, and half of what was freed is
allocated again. Tables and lists are checked before a time is reported.
"""

from __future__ import annotations

from functools import partial

import pytest

from kvdefrag.perf.cycles import Cycle
from kvdefrag.perf.interleaved import OURS, Meter

ROUNDS = {1: 301, 16: 301, 256: 101, 4_096: 31, 65_536: 9}
FRAGMENTATION = 0.25
LEAST_PAGES = 64
THEIR_HOLES = (1, 256, 4_096)
"""An eager free packs as well, and is timed as such."""

CASES = [
    *((OURS, op, holes) for op in ("free", "alloc") for holes in ROUNDS),
    *(("scalar", op, holes) for op in ("free", "alloc") for holes in THEIR_HOLES),
    *(("eager", "free", holes) for holes in THEIR_HOLES),
]


@pytest.mark.parametrize(("contender", "op", "holes"), CASES)
def test_operation(meter: Meter, contender: str, op: str, holes: int) -> None:
    baseline = "scalar" if contender == OURS else contender
    live_pages = max(LEAST_PAGES, round(holes / FRAGMENTATION))
    cycles = {name: Cycle(name, holes, live_pages) for name in (OURS, baseline)}
    subject = cycles.pop(contender)
    (other,) = cycles.values()
    meter.by_turns(partial(subject.prepare, op), partial(other.prepare, op), ROUNDS[holes])
    other.pool.check()
    meter.record("alloc_free", contender, baseline, **subject.figures(op))

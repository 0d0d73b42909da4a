"""The plan alone: sorted holes in, `MovePlan` out, beside the page-by-page walk over a list.

The pairs are those of the walk, which is checked before a time is reported.
"""

from __future__ import annotations

import numpy as np
import pytest

from kvdefrag.allocator.plan import plan_moves
from kvdefrag.perf.baselines import walk
from kvdefrag.perf.interleaved import OURS, Meter, seconds

HOLES = (1, 16, 256, 4_096, 65_536)
ROUNDS = {1: 301, 16: 301, 256: 301, 4_096: 101, 65_536: 31}
LEAST_PAGES = 64
CASES = [*((holes, 0.25) for holes in HOLES), (256, 0.75), (4_096, 0.75), (65_536, 0.75)]


@pytest.mark.parametrize(("holes", "fragmentation"), CASES)
def test_plan(meter: Meter, holes: int, fragmentation: float) -> None:
    span = max(LEAST_PAGES, round(holes / fragmentation))
    depths = np.sort(np.random.default_rng(holes).permutation(span)[:holes])
    hole_list = depths.tolist()
    plan = plan_moves(depths, span)
    pairs = list(zip(plan.sources.tolist(), plan.targets.tolist(), strict=True))
    assert pairs == list(walk(hole_list, span))
    assert plan.span_after == span - holes
    assert plan.remaining.size == 0
    for _ in range(ROUNDS[holes]):
        meter.other_s.append(seconds(lambda: list(walk(hole_list, span))))
        meter.subject_s.append(seconds(lambda: plan_moves(depths, span)))
    meter.alone(lambda: plan_moves(depths, span))
    meter.record(
        "plan",
        OURS,
        "scalar",
        holes=holes,
        moves=len(pairs),
        pages_moved=len(pairs),
        fragmentation=holes / span,
        backend="host",
        launches=0,
        d2h=0,
        h2d=0,
    )

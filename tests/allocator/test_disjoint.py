"""With ``debug=True`` a move batch whose pages are not distinct is named before anything moves."""

from typing import Any

import numpy as np
import pytest

from kvdefrag import Arena, CorruptState, PoolSpec
from kvdefrag.allocator import limits
from kvdefrag.allocator.plan import MovePlan
from kvdefrag.allocator.testing import stamp_pages, wrong_pages

BAD = {
    "page 3 is 1 times a source and 1 times a target": ([7, 2], [0, 2]),
    "page 1 is 0 times a source and 2 times a target": ([7, 6], [0, 0]),
    "page 8 is 2 times a source and 0 times a target": ([7, 7], [0, 1]),
}


@pytest.mark.parametrize("message", BAD)
def test_overlapping_pages_are_named(
    backend: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources, targets = (np.array(depths) for depths in BAD[message])

    def overlapping(*arguments: Any, **options: Any) -> MovePlan:
        return MovePlan(sources, targets, np.empty(0, np.int64), 6, 0, "")

    arena = Arena(9 * 64, [PoolSpec("a", 64)], device="cpu", backend=backend, debug=True)
    pool = arena["a"]
    ids = pool.alloc(8)
    stamp_pages(pool, ids)
    pool.free(ids[:2])
    monkeypatch.setattr(limits, "plan_moves", overlapping)
    with pytest.raises(CorruptState, match=f"pool 'a': {message} of one move batch"):
        pool.flush()
    assert wrong_pages(pool, ids[2:]) == []
    monkeypatch.undo()
    assert pool.flush().moves == 2
    assert wrong_pages(pool, ids[2:]) == []

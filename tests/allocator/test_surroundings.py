"""Arenas built and used in the modes that engines set, and arguments of unheard-of kinds."""

from typing import Any

import numpy as np
import pytest
import torch

from kvdefrag import Arena, CorruptState, PoolSpec, UsageError
from kvdefrag.allocator.testing import stamp_pages, wrong_pages

SPEC = PoolSpec("a", 10)


def use(arena: Arena) -> None:
    pool = arena["a"]
    ids = pool.alloc(6)
    stamp_pages(pool, ids)
    pool.free(ids[:3])
    assert pool.flush(urgent=True).moves == 3
    assert wrong_pages(pool, ids[3:]) == []
    arena.check(deep=True)
    arena.clear()
    assert pool.alloc(2).tolist() == [1, 2]


def test_built_in_inference_mode_used_outside(backend: str) -> None:
    with torch.inference_mode():
        arena = Arena(1000, [SPEC], device="cpu", backend=backend)
    use(arena)


def test_used_in_inference_mode(backend: str) -> None:
    arena = Arena(1000, [SPEC], device="cpu", backend=backend)
    with torch.inference_mode():
        use(arena)


def test_another_default_device(backend: str) -> None:
    with torch.device("meta"):
        arena = Arena(1000, [SPEC], device="cpu", backend=backend)
        arena.prewarm()
    use(arena)


def test_mover_that_raises_stops_the_arena(backend: str) -> None:
    seen: list[int] = []

    def fails(sources: torch.Tensor, targets: torch.Tensor) -> None:
        raise RuntimeError("no stream")

    pools = [
        PoolSpec("a", 10, mover=fails),
        PoolSpec(
            "b", 33, grows="down", mover=lambda sources, targets: seen.append(sources.tolist())
        ),
    ]
    arena = Arena(1000, pools, device="cpu", backend=backend)
    for name in "ab":
        arena[name].free(arena[name].alloc(5)[:2])
    with pytest.raises(RuntimeError, match="no stream"):
        arena.flush()
    assert len(seen) == 1
    with pytest.raises(
        CorruptState, match=r"pool 'a': its mover raised RuntimeError\('no stream'\)"
    ):
        arena["b"].alloc(1)
    arena.clear()
    assert arena["a"].alloc(1).tolist() == [1]


@pytest.mark.parametrize("call", ["free", "translate", "translate_tokens"])
def test_sparse_ids(backend: str, call: str) -> None:
    pool = Arena(1000, [SPEC], device="cpu", backend=backend)["a"]
    pool.alloc(3)
    with pytest.raises(UsageError, match="expected a strided tensor"):
        getattr(pool, call)(torch.tensor([1, 2]).to_sparse())


@pytest.mark.parametrize(
    "out", [torch.zeros(1, dtype=torch.int64).expand(3), torch.ones(3).long().to_sparse()]
)
def test_out_with_one_place_for_many(backend: str, out: torch.Tensor) -> None:
    pool = Arena(1000, [SPEC], device="cpu", backend=backend)["a"]
    with pytest.raises(UsageError, match="out: expected one place a token"):
        pool.translate_tokens([1, 2, 3], out=out)


ODD: dict[str, dict[str, Any]] = {
    "total_bytes": {"total_bytes": 2**64},
    "backend": {"backend": np.array([1, 2])},
    "buffer": {"buffer": np.zeros(1000, np.uint8), "device": None},
}


@pytest.mark.parametrize("argument", ODD)
def test_odd_argument_is_named(argument: str) -> None:
    given: dict[str, Any] = {"total_bytes": 1000, "pools": [SPEC], "device": "cpu"}
    with pytest.raises(UsageError, match=f"^{argument}: "):
        Arena(**{**given, **ODD[argument]})


def test_odd_names() -> None:
    with pytest.raises(UsageError, match="grows: "):
        PoolSpec("a", 1, 1, np.array(["up", "down"]))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no pool"):
        Arena(1000, [SPEC], device="cpu")[["a"]]  # type: ignore[index]

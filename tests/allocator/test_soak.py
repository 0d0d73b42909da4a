"""The soak of `tests/soak.py` in a small form."""

import pytest
from click.testing import CliRunner

from kvdefrag.allocator.hazards import Hazards

from .. import soak as soak_module
from ..soak import OCCUPANCY, main, soak
from .rig import by_backend


def test_a_full_arena_under_heavy_eviction(backend):
    calls = by_backend(backend, 20_000, 40)
    done = soak(calls, seed=2, backend=backend, deep_every=1000)
    assert done.calls >= calls
    assert OCCUPANCY <= done.min_occupancy < done.mean_occupancy < 1
    if backend == "host":
        assert done.moves > 2000
        assert done.moves_under_forwards > 200
        assert done.evictions > 2000
        assert done.waits > 500


@pytest.mark.parametrize(("backend", "pools"), [("host", 3), ("host", 4), ("triton", 3)])
def test_a_full_arena_whose_pools_borrow(backend, pools):
    calls = by_backend(backend, 800, 12)
    done = soak(calls, seed=pools, backend=backend, deep_every=500, pools=pools)
    assert done.min_occupancy >= OCCUPANCY
    if backend == "host":
        assert min(done.moves, done.evictions, done.bound, done.retired) > 20
        assert done.moves_under_forwards > 0
        assert done.waits > 5


def test_the_report():
    done = CliRunner().invoke(main, ["--calls", "300", "--pools", "3"])
    assert done.exit_code == 0
    for word in ("calls", "moves", "flushes", "waits", "evictions", "min occupancy"):
        assert word in done.output


def test_a_mismatch_is_an_exit_code(monkeypatch):
    monkeypatch.setattr(Hazards, "wait", lambda hazards, pending: None)
    done = CliRunner().invoke(main, ["--calls", "3000"])
    assert done.exit_code == 1
    assert "mismatch with --seed 1" in done.output


def test_a_low_occupancy_is_a_mismatch(monkeypatch):
    monkeypatch.setattr(soak_module, "OCCUPANCY", 1.0)
    with pytest.raises(AssertionError, match="full"):
        soak(50)

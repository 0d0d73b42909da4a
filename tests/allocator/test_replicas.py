"""Replicas that see the same calls give the same answers, whichever fences have fired."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .replica import TOTAL_BYTES, Replicas, drive, replica
from .rig import by_backend
from .traffic import chain_of

HASTE = (0.9, 0.1, 0.3, 0.02)


@pytest.mark.parametrize(("count", "pools"), [(2, 2), (4, 2), (2, 3), (2, 4)])
def test_replicas_in_one_process(backend, count, pools):
    """The first on `backend`, the others on the host: backends answer alike, too."""
    backends = [backend, *["host"] * (count - 1)]
    layout = chain_of(pools, TOTAL_BYTES)
    replicas = [replica(seed, HASTE[seed], backends[seed], layout) for seed in range(count)]
    calls = {2: 10_000, 4: 3000}[count] if pools == 2 else 600
    calls = by_backend(backend, calls, 60 if pools == 2 else 16)
    driven = Replicas(replicas)
    traffic = drive(driven, calls, count, lambda call: None, calls // 20, layout)
    stats = [each.world.arena.stats() for each in replicas]
    assert traffic.calls >= calls
    if backend == "host":
        assert len({(each.moves, each.fence_waits) for each in stats}) > 1
        assert min(each.moves for each in stats) > 100 or pools > 2
        assert traffic.evictions > calls // 10
        assert driven.differed or count > 2 or pools > 2
        assert pools == 2 or replicas[0].world.counts["retire"] > 10


def run_ranks(
    project_root: Path, meeting_point: Path, ranks: int, *options: str
) -> tuple[list[int], list[str], list[str]]:
    """Exit codes, outputs and errors of `ranks` processes; none is left behind."""
    processes = [
        subprocess.Popen(
            [
                sys.executable, "-m", "tests.allocator.replica_rank",
                "--rank", str(rank), "--ranks", str(ranks),
                "--meeting-point", str(meeting_point), *options,
            ],
            cwd=project_root,
            env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]  # fmt: skip
    deadline = time.monotonic() + 300
    try:
        # A rank that has failed leaves the others waiting for it.
        while any(process.poll() is None for process in processes):
            failed = any(process.poll() for process in processes)
            if failed or time.monotonic() > deadline:
                break
            time.sleep(0.1)
        for process in processes:
            process.kill() if process.poll() is None else None
        ended = [process.communicate() for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
    codes = [process.returncode for process in processes]
    return codes, [out for out, _ in ended], [error for _, error in ended]


def test_four_processes_under_gloo(project_root, tmp_path):
    """The group that tensor-parallel engines use, on the loopback."""
    codes, outputs, errors = run_ranks(project_root, tmp_path / "meet", 4, "--calls", "10000")
    assert codes == [0, 0, 0, 0], "\n".join(errors)
    done = [json.loads(output) for output in outputs]
    assert all(each["calls"] >= 10_000 and each["compared"] >= 19 for each in done)
    assert len({each["moves"] for each in done}) > 1
    assert all(each["evictions"] > 500 and each["holds"] > 5 for each in done)


def test_ranks_that_disagree_are_found(project_root, tmp_path):
    options = ("--calls", "600", "--odd-call", "500", "--pools", "4")
    codes, _, errors = run_ranks(project_root, tmp_path / "meet", 2, *options)
    assert any(codes)
    assert "the ranks disagree" in "".join(errors)

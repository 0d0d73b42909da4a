"""A few rows of the benchmarks run, are checked first, and leave a record that says what they are.

Where a time is looked at here, it is only that it is one.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from kvdefrag import CorruptState
from kvdefrag.perf.cycles import Cycle
from kvdefrag.perf.host_table import host_table
from kvdefrag.perf.interleaved import Meter, ratios

ROWS = (
    "test_plan[16-0.25]",
    "test_operation[kvdefrag-free-16]",
    "test_operation[kvdefrag-alloc-16]",
    "test_operation[eager-free-1]",
    "test_flush_without_copy[kvdefrag-16-0.25]",
    "test_flush_with_bytes[16-4096-kvdefrag]",
    "test_flush_with_bytes[16-4096-batched]",
    "test_copy[auto-16-4096]",
    "test_translate[triton-256]",
    "test_replay[static]",
)
FILES = {
    "test_plan": "bench_plan.py",
    "test_operation": "bench_alloc_free.py",
    "test_flush_without_copy": "bench_flush.py",
    "test_flush_with_bytes": "bench_flush.py",
    "test_copy": "bench_kernels.py",
    "test_translate": "bench_kernels.py",
    "test_replay": "bench_replay.py",
}


def test_a_few_rows_run_and_leave_a_record(project_root, tmp_path):
    """One test, so that one worker runs them once."""
    path = tmp_path / "record.json"
    tests = [f"perf/{FILES[row.split('[')[0]]}::{row}" for row in ROWS]
    # A run inside another one's worker would have its timing switched off.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    done = subprocess.run(
        [
            Path(sys.executable).with_name("pytest"),
            "-q",
            "-p",
            "no:cacheprovider",
            *tests,
            f"--benchmark-json={path}",
        ],
        cwd=project_root,
        env={**environment, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "│ 16" in done.stdout
    assert "│ 256" not in done.stdout
    record = json.loads(path.read_text())
    rows = {row["name"]: row["extra_info"] for row in record["benchmarks"]}
    every_row_says_what_it_is(rows)
    interpreted_rows_are_marked(rows)
    counts_are_those_of_the_design(rows)


def every_row_says_what_it_is(rows):
    assert set(rows) == set(ROWS)
    for name, info in rows.items():
        file = FILES[name.split("[")[0]]
        assert info["layer"] == file.removeprefix("bench_").removesuffix(".py")
        assert set(info) >= {"contender", "baseline", "backend", "device", "torch", "triton"}, name
        assert all(isinstance(value, int | float | str) for value in info.values())
        assert ("paired_ratio_p50" in info) == ("triton" not in name)
        if "paired_ratio_p50" in info:
            assert 0 < info["paired_ratio_p25"] <= info["paired_ratio_p50"]


def interpreted_rows_are_marked(rows):
    marked = {name for name, info in rows.items() if info.get("interpreted")}
    assert marked == {"test_translate[triton-256]"}
    assert rows["test_translate[triton-256]"]["backend"] == "interpret"
    assert rows["test_copy[auto-16-4096]"]["backend"] == "host"


def counts_are_those_of_the_design(rows):
    flush = rows["test_flush_with_bytes[16-4096-kvdefrag]"]
    assert (flush["d2h"], flush["h2d"], flush["launches"]) == (1, 1, 3)
    assert (flush["moves"], flush["holes"], flush["bytes_moved"]) == (16, 32, 16 * 4096)
    assert flush["gbps"] > 0
    free = rows["test_operation[kvdefrag-free-16]"]
    assert (free["d2h"], free["h2d"], free["launches"]) == (0, 0, 1)
    assert rows["test_replay[static]"]["moves"] == 0
    assert "gbps" not in rows["test_replay[static]"]


def test_a_ratio_is_their_time_over_ours_round_by_round():
    found = ratios([2.0, 9.0, 4.0], [1.0, 3.0, 8.0])
    assert found["paired_ratio_p50"] == 2.0
    assert ratios([3.0], [2.0])["paired_ratio_p50"] == 1.5


@pytest.mark.parametrize(("contender", "expected"), [("kvdefrag", 4.0), ("batched", 0.25)])
def test_a_row_of_a_baseline_is_turned_round(contender, expected):
    stats = SimpleNamespace(stats=SimpleNamespace(median=1.0, data=[1.0, 1.0]))
    rows = []
    meter = Meter(SimpleNamespace(stats=stats, extra_info={}), rows)
    meter.subject_s, meter.other_s = [1.0, 1.0], [4.0, 4.0]
    meter.record("plan", contender, "batched", bytes_moved=10**9)
    assert rows[0]["paired_ratio_p50"] == expected
    assert rows[0]["gbps"] == 2.0
    assert rows[0]["median_us"] == 1e6


@pytest.mark.parametrize("contender", ["kvdefrag", "scalar", "batched"])
def test_a_cycle_whose_tables_are_wrong_gives_no_figures(contender):
    cycle = Cycle(contender, holes=8, live_pages=64)
    for op in ("free", "flush", "alloc"):
        cycle.prepare(op)()
    cycle.figures("flush")
    pool = cycle.pool.arena["pool"] if contender == "kvdefrag" else cycle.pool.pool
    pool.virtual_to_physical[int(cycle.live[0])] = 3
    with pytest.raises(CorruptState):
        cycle.figures("flush")


def test_the_table_takes_ours_alone():
    row = {"contender": "kvdefrag", "holes": 16, "fragmentation": 0.25, "median_us": 10.0}
    rows = [{**row, "op": op, "paired_ratio_p50": 2.5} for op in ("free", "flush", "alloc")]
    others = [{**r, "contender": "scalar", "median_us": 99.0} for r in rows]
    table = host_table([*rows, *others, {**rows[0], "holes": 256}])
    assert table.row_count == 1
    assert [list(column.cells) for column in table.columns][:2] == [["16"], ["10.0"]]

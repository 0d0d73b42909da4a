"""The baselines beside ours on one trace."""

import json

import pytest

from kvdefrag.perf.baseline_pool import BaselinePool

from .replay_rig import HYBRID, PRESSED, SMALL, report_of, run

PACKING = ("kvdefrag", "scalar", "batched", "eager")
ALL = "--compare=scalar,batched,eager,static,unpacked"
TRAFFIC = ("hit_rate", "evicted_pages", "waited_requests", "preemptions", "finished", "refused")


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    path = tmp_path_factory.mktemp("compare") / "comparison.json"
    result = run(
        *PRESSED, ALL, "--split=50,80", "--device-sync-us=20", "--verify=full", f"--json={path}"
    )
    assert result.exit_code == 0, result.output
    return json.loads(path.read_text()), result.output


def rows_of(compared):
    return {
        row["contender"] + (f" {row['split']}" if row["split"] else ""): row
        for row in compared[0]["comparison"]
    }


def test_every_contender_is_there_and_every_page_was_right(compared):
    rows = rows_of(compared)
    assert list(rows) == [*PACKING, "static 50/50", "static 80/20", "unpacked"]
    for row in rows.values():
        assert row["passed"]
        assert row["wrong_pages"] == 0
        assert row["pages_checked"] > 1000
        assert row["finished"] + row["refused"] == 60


def test_what_packs_serves_alike(compared):
    rows = rows_of(compared)
    for name in PACKING[1:]:
        for key in TRAFFIC:
            assert rows[name][key] == rows["kvdefrag"][key], (name, key)


def test_moves_and_read_backs_are_those_of_each_kind(compared):
    rows = rows_of(compared)
    ours, scalar, batched = (rows[name] for name in PACKING[:3])
    assert ours["device_to_host_copies"] == ours["flushes"]
    assert scalar["moves"] == batched["moves"] > ours["moves"] > 100
    assert scalar["bytes_moved"] == batched["bytes_moved"] > ours["bytes_moved"]
    assert scalar["device_to_host_copies"] == scalar["moves"] + scalar["flushes"]
    assert batched["device_to_host_copies"] == batched["flushes"] == scalar["flushes"]
    assert rows["eager"]["moves"] > batched["moves"]
    assert rows["eager"]["flushes"] > batched["flushes"]
    for name in ("static 50/50", "static 80/20", "unpacked"):
        assert rows[name]["moves"] == rows[name]["bytes_moved"] == 0
    assert rows["static 50/50"]["device_to_host_copies"] == 0


def test_packing_serves_more_than_a_split_or_holes_that_stay(compared):
    rows = rows_of(compared)
    evicted = {name: sum(row["evicted_pages"].values()) for name, row in rows.items()}
    assert evicted["static 50/50"] > evicted["unpacked"] >= evicted["kvdefrag"]


def test_times_add_up_and_the_model_stands_apart(compared):
    for row in rows_of(compared).values():
        times = dict(row["host_ms"])
        total = times.pop("total")
        assert set(times) == {"alloc", "free", "flush"}
        assert total == pytest.approx(sum(times.values()))
        assert (times["flush"] > 0) == (row["moves"] > 0)
        assert row["modelled_sync_ms"] == pytest.approx(row["device_to_host_copies"] * 0.02)
        assert 0 < total < row["elapsed_s"] * 1e3
    assert compared[0]["settings"]["device_sync_us"] == 20
    assert "not measured" in compared[1]


def test_without_a_cost_no_model_is_shown(tmp_path):
    path = tmp_path / "one.json"
    result = run(*PRESSED, "--limit=20", "--compare=batched", f"--json={path}")
    assert result.exit_code == 0
    assert "model" not in result.output
    report = json.loads(path.read_text())
    assert [row["modelled_sync_ms"] for row in report["comparison"]] == [0, 0]
    assert report["settings"]["verify"] == "sample"


def test_several_pool_sizes(tmp_path):
    report = report_of(
        tmp_path, *HYBRID, "--limit=30", "--pool-gib=0.001,0.003", "--compare=static", "--split=70"
    )
    found = [(row["contender"], row["pool_gib"], row["split"]) for row in report["comparison"]]
    assert found == [
        ("kvdefrag", 0.001, None),
        ("static", 0.001, "70/30"),
        ("kvdefrag", 0.003, None),
        ("static", 0.003, "70/30"),
    ]


def test_one_pool_has_nothing_to_split(tmp_path):
    report = report_of(tmp_path, *SMALL, "--limit=20", "--pool-gib=0.001", "--compare=static")
    assert [row["split"] for row in report["comparison"]] == [None, None]
    assert report["comparison"][0]["hit_rate"] == report["comparison"][1]["hit_rate"]


def test_a_baseline_that_copies_nothing_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(BaselinePool, "copy_pages", lambda pool, sources, targets: None)
    result = run(*PRESSED, "--compare=batched,static")
    assert result.exit_code == 1
    assert "FAILED: batched" in result.output
    assert "FAILED: static" not in result.output


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--compare=fast"], "'fast' is not one of"),
        (["--compare=scalar", "--split=50"], "--compare static"),
        (["--compare=static", "--split=0"], "--split"),
        (["--compare=static", "--split=100"], "--split"),
        (["--compare=static", "--split=half"], "--split"),
        (["--split=50"], "--compare"),
        (["--device-sync-us=5"], "--compare"),
        (["--compare=scalar", "--device-sync-us=-1"], "--device-sync-us"),
        (["--pool-gib=1,2"], "--compare"),
        (["--drift=1"], "--drift"),
        (["--compare=static", "--split=99.99"], "refused these options"),
    ],
    ids=" ".join,
)
def test_bad_options_are_named_and_exit_with_2(options, part):
    result = run(*HYBRID, "--pool-gib=0.001", *options)
    assert result.exit_code == 2
    assert part in " ".join(result.output.split())

from collections import Counter

import pytest

from kvdefrag.kernels.backend import HostBackend
from kvdefrag.perf.page_stamps import PageStamps

from .replay_rig import HYBRID, PRESSED, TIMES, report_of, run


def test_under_pressure_every_byte_stays_right(tmp_path):
    report = report_of(tmp_path, *PRESSED)
    assert report["passed"]
    assert report["requests"]["finished"] == 60
    assert report["flushes_with_moves"] > 10
    assert report["moves"] > 100
    assert report["bytes_moved"] > 64 * report["moves"]
    assert min(report["evicted_pages"].values()) > 0
    assert report["device_to_host_copies"] >= report["flushes"] >= report["flushes_with_moves"]
    assert report["byte_check"]["pages_checked"] > report["evicted_pages"]["full"]
    assert report["byte_check"]["wrong_pages"] == 0
    assert {pool["peak_hole_pages"] > 0 for pool in report["pools"].values()} == {True}


def test_every_page_is_compared_on_a_hit_and_before_it_is_freed_and_at_the_end(monkeypatch):
    pages = Counter()
    write, compare = PageStamps.write, PageStamps.compare

    def counting_write(stamps, virtual_ids, keys):
        pages["written"] += len(keys)
        write(stamps, virtual_ids, keys)

    def counting_compare(stamps, virtual_ids, keys, moment):
        pages[moment] += len(keys)
        compare(stamps, virtual_ids, keys, moment)

    monkeypatch.setattr(PageStamps, "write", counting_write)
    monkeypatch.setattr(PageStamps, "compare", counting_compare)
    assert run(*PRESSED).exit_code == 0
    assert pages["prefix hit"] > 1000
    last_looks = [pages[moment] for moment in ("before eviction", "before release", "at the end")]
    assert min(last_looks) > 300
    assert sum(last_looks) == pages["written"]


def test_times_cover_every_call(tmp_path):
    report = report_of(tmp_path, *PRESSED)
    times = report["host_time"]
    assert times["alloc"]["calls"] == report["alloc_calls"]
    assert times["free"]["calls"] == report["free_calls"]
    assert 0 < times["flush"]["calls"] <= report["flushes"]
    for row in times.values():
        assert 0 < row["p50_us"] <= row["p99_us"] <= row["max_us"] <= 1e3 * row["sum_ms"]


def test_the_tables_show_the_report(tmp_path):
    result = run(*PRESSED, "--limit=20")
    assert result.exit_code == 0
    for part in ("flushes that moved pages", "hit rate", "host time", "p99", "All bytes right"):
        assert part in result.output


def test_same_seed_same_report(tmp_path):
    reports = [report_of(tmp_path, *PRESSED, f"--seed={seed}") for seed in (1, 1, 2)]
    for report in reports:
        for key in TIMES:
            del report[key]
    assert reports[0] == reports[1] != reports[2]


def test_a_copy_that_does_nothing_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(HostBackend, "copy_pages", lambda self, *arguments: None)
    report = report_of(tmp_path, *PRESSED, exit_code=1)
    assert not report["passed"]
    assert report["byte_check"]["wrong_pages"] > 0
    assert "expected" in report["byte_check"]["first_wrong"]
    result = run(*PRESSED)
    assert result.exit_code == 1
    assert "WRONG BYTES" in result.output


def test_a_sample_finds_a_copy_that_does_nothing_and_off_does_not_look(tmp_path, monkeypatch):
    monkeypatch.setattr(HostBackend, "copy_pages", lambda self, *arguments: None)
    sample = report_of(tmp_path, *PRESSED, "--verify=sample", exit_code=1)
    off = report_of(tmp_path, *PRESSED, "--verify=off")
    assert 0 < sample["byte_check"]["wrong_pages"] < sample["byte_check"]["pages_checked"]
    assert off["byte_check"]["pages_checked"] == 0
    assert off["moves"] == sample["moves"]


def test_pages_that_are_lost_are_a_fault(tmp_path, monkeypatch):
    monkeypatch.setattr("kvdefrag.perf.engine.Engine._release", _release_and_forget_the_pages)
    report = report_of(tmp_path, *HYBRID, "--pool-gib=0.01", "--limit=5", exit_code=1)
    assert report["byte_check"]["wrong_pages"] == 0
    assert "live pages" in report["byte_check"]["faults"][0]


def _release_and_forget_the_pages(engine, slot):
    held = engine._batch.remove(slot)
    engine.cache.unlock(held.end)
    return held.job


def test_tables_that_disagree_are_a_fault(tmp_path, monkeypatch):
    compare = "kvdefrag.perf.page_store.PageStore.compare"
    monkeypatch.setattr(compare, _compare_after_breaking_a_table)
    report = report_of(tmp_path, *HYBRID, "--pool-gib=0.01", "--limit=5", exit_code=1)
    assert "CorruptState" in report["byte_check"]["faults"][0]


def _compare_after_breaking_a_table(store, nodes, state_nodes, moment):
    if moment == "at the end":
        store.timed.arena["full"].physical_to_virtual[5] = 3


def test_both_backends_count_the_same(tmp_path, write_trace):
    sessions = [[1, *(10 * (i % 5) + j for j in range(1 + i * 7 % 3))] for i in range(14)]
    trace = write_trace(
        *((blocks, i * 37 % 128, 1 + i * 53 % 200) for i, blocks in enumerate(sessions))
    )
    sizes = ["--page-bytes=24", "--page-scale=1", "--page-size=128", "--state-bytes=130"]
    pool = [f"--pool-gib={2600 / 2**30}", "--running=4", "--device=cpu"]
    reports = []
    for backend in ("host", "triton"):
        report = report_of(tmp_path, trace, *sizes, *pool, f"--backend={backend}")
        assert report["settings"].pop("backend") == backend
        for key in TIMES:
            del report[key]
        reports.append(report)
    assert reports[0] == reports[1]
    assert reports[0]["flushes_with_moves"] > 3


@pytest.mark.parametrize("name", ["qwen3.5-9b", "kimi-linear-48b", "llama-3.1-8b"])
def test_presets_run(tmp_path, name):
    report = report_of(
        tmp_path,
        f"--geometry={name}",
        "--page-scale=4096",
        "--pool-gib=12",
        "--limit=25",
        "--running=4",
        "--device=cpu",
    )
    assert report["settings"]["geometry"] == name
    assert report["requests"]["finished"] + report["requests"]["refused"] == 25


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--geometry=unknown"], "--geometry"),
        (["--geometry=llama-3.1-8b", "--page-bytes=2048"], "--page-bytes"),
        (["--page-size=16"], "--page-size"),
        (["--state-bytes=16"], "--state-bytes"),
        (["--page-bytes=0"], "--page-bytes"),
        (["--page-bytes=100"], "less than a byte"),
        (["--page-bytes=4096", "--page-size=24"], "24 does not divide"),
        (["--pool-gib=0"], "--pool-gib"),
        (["--pool-gib=0.001"], "holds no state slot"),
        (["--page-bytes=2048", "--pool-gib=0.000002"], "refused these options"),
        (["--page-scale=0"], "'0'"),
        (["--page-scale=-1/2"], "'-1/2'"),
        (["--page-scale=1/0"], "'1/0'"),
        (["--page-scale=large"], "'large'"),
        (["--running=0"], "--running"),
        (["--seed=-1"], "--seed"),
        (["--limit=0"], "--limit"),
        (["--backend=cuda"], "--backend"),
        (["--verify=some"], "--verify"),
        (["--trace=missing.jsonl"], "--trace"),
        (["--limit=1", "--json=no/such/folder/report.json"], "--json"),
        (["extra"], "extra"),
    ],
    ids=" ".join,
)
def test_bad_options_are_named_and_exit_with_2(options, part):
    result = run(*options)
    assert result.exit_code == 2
    assert part in result.output


def test_a_bad_trace_exits_with_2_and_names_the_line(tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"timestamp": 0}\n')
    result = run(f"--trace={path}")
    assert result.exit_code == 2
    assert "line 1: input_length is missing" in result.output


@pytest.mark.parametrize(("text", "expected"), [("1/512", "1/512"), ("512", "1/512"), ("1", "1")])
def test_a_scale_is_a_fraction_or_a_divisor(tmp_path, text, expected):
    report = report_of(
        tmp_path, "--page-bytes=8192", f"--page-scale={text}", "--pool-gib=0.1", "--limit=1"
    )
    assert report["settings"]["page_scale"] == expected

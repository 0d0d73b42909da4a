import json

import pytest
from click.testing import CliRunner

from kvdefrag.perf.__main__ import main

from . import made_up_results as made_up
from .made_up_results import bench_row, flush_row

OURS = "bench_flush.py::test_flush[kvdefrag-256-65536]"


@pytest.fixture
def compare(tmp_path):
    """Run the command on two lists of rows; the result and what --json wrote."""

    def run(before, after, *options, brands=("A CPU", "A CPU")):
        paths = [tmp_path / "a.json", tmp_path / "b.json"]
        for path, rows, brand in zip(paths, (before, after), brands, strict=True):
            path.write_text(json.dumps(made_up.record(rows=rows, brand=brand)))
        out = tmp_path / "out.json"
        out.unlink(missing_ok=True)
        result = CliRunner().invoke(
            main, ["compare", *map(str, paths), f"--json={out}", *options], terminal_width=200
        )
        return result, json.loads(out.read_text()) if out.exists() else None

    return run


def plain_row(median_us, name="test_a"):
    return with_times(bench_row(name, median_us, {"layer": "plan"}), median_us)


def paired_row(median_us, ratio, spread=0.01):
    low, high = ((1 - spread) * ratio, (1 + spread) * ratio) if ratio else (None, None)
    quartiles = {"paired_ratio_p25": low, "paired_ratio_p75": high, "paired_rounds": 9}
    row = flush_row("kvdefrag", 256, 65536, 0, paired_ratio_p50=ratio, **quartiles)
    return with_times(row, median_us, spread)


def with_times(row, median_us, spread=0.01):
    row["stats"]["median"] = median_us / 1e6
    row["stats"]["q1"] = (1 - spread) * median_us / 1e6
    row["stats"]["q3"] = (1 + spread) * median_us / 1e6
    return row


@pytest.mark.parametrize(("after_us", "status"), [(100.0, 0), (109.0, 0), (111.0, 1), (50.0, 0)])
def test_medians_decide_where_no_baseline_was_timed(compare, after_us, status):
    result, report = compare([plain_row(100.0)], [plain_row(after_us)], "--fail-above=10%")
    assert result.exit_code == status, result.output
    (row,) = report["rows"]
    assert row["measure"] == "median"
    assert row["slower"] == pytest.approx(after_us / 100 - 1)
    assert row["failed"] == bool(status)


def test_a_slow_machine_does_not_decide_where_a_baseline_was_timed(compare):
    result, report = compare([paired_row(100, 3.0)], [paired_row(190, 2.9)], "--fail-above=10%")
    assert result.exit_code == 0, result.output
    assert report["rows"][0]["measure"] == "paired ratio"


def test_twenty_per_cent_slower_than_the_baseline_is_caught_at_the_same_median(compare):
    result, report = compare([paired_row(100, 3.0)], [paired_row(100, 2.5)], "--fail-above=10%")
    assert result.exit_code == 1
    assert report["rows"][0]["slower"] == pytest.approx(0.2)
    assert f"FAILED {OURS}: 20.0% slower, 10.0% allowed" in result.output


def test_what_the_spread_may_explain_fails_if_strict_alone(compare):
    before, after = [paired_row(100, 3.0, 0.3)], [paired_row(100, 2.5, 0.3)]
    result, report = compare(before, after, "--fail-above=10%")
    assert result.exit_code == 0, result.output
    assert f"unclear {OURS}: 20.0% slower, within the spread of the rounds" in result.output
    assert report["rows"][0]["is_clear"] is False
    result, _ = compare(before, after, "--fail-above=10%", "--strict")
    assert result.exit_code == 1


def test_a_noisy_baseline_hides_no_slower_time(compare):
    before = [with_times(paired_row(100, 3.0, 0.5), 100)]
    after = [with_times(paired_row(120, 2.5, 0.5), 120)]
    result, _ = compare(before, after, "--fail-above=10%")
    assert result.exit_code == 1


def test_a_ratio_on_one_side_only_is_not_used(compare):
    bare = paired_row(130, None)
    result, report = compare([paired_row(100, 3.0)], [bare], "--fail-above=10%")
    assert result.exit_code == 1
    assert report["rows"][0]["measure"] == "median"


def test_slow_rows_are_named_and_come_first(compare):
    before = [plain_row(100.0, "test_quick"), plain_row(100.0, "test_slow")]
    after = [plain_row(90.0, "test_quick"), plain_row(150.0, "test_slow")]
    result, report = compare(before, after, "--fail-above=0.1")
    assert result.exit_code == 1
    assert "FAILED bench_flush.py::test_slow: 50.0% slower" in result.output
    assert "FAILED bench_flush.py::test_quick" not in result.output
    assert [row["name"].split("::")[1] for row in report["rows"]] == ["test_slow", "test_quick"]


def test_missing_rows_are_named_and_fail(compare):
    before, after = [plain_row(1.0), plain_row(1.0, "test_gone")], [plain_row(1.0)]
    result, report = compare(before, after, "--fail-above=10%")
    assert result.exit_code == 1
    assert "FAILED bench_flush.py::test_gone: not in B" in result.output
    assert report["missing"] == ["bench_flush.py::test_gone"]
    result, _ = compare(before, after, "--fail-above=10%", "--allow-missing")
    assert result.exit_code == 0
    assert "only in A: bench_flush.py::test_gone" in result.output


def test_new_rows_are_named(compare):
    result, report = compare([plain_row(1.0)], [plain_row(1.0), plain_row(1.0, "test_new")])
    assert result.exit_code == 0
    assert "only in B: bench_flush.py::test_new" in result.output
    assert report["added"] == ["bench_flush.py::test_new"]


def test_without_a_limit_nothing_fails(compare):
    result, report = compare([plain_row(1.0)], [plain_row(9.0)])
    assert result.exit_code == 0
    assert report["rows"][0]["failed"] is False


def test_interpreter_rows_are_left_out_and_counted(compare):
    slow = made_up.interpreted_row()
    slow["stats"]["median"] *= 100
    before, after = [plain_row(1.0), made_up.interpreted_row()], [plain_row(1.0), slow]
    result, report = compare(before, after, "--fail-above=10%")
    assert result.exit_code == 0
    assert len(report["rows"]) == 1
    assert "left out of B: 1 rows of Triton's interpreter" in result.output


def test_two_machines_are_pointed_out_for_medians_alone(compare):
    rows = [plain_row(1.0)]
    result, _ = compare(rows, rows, brands=("This CPU", "That CPU"))
    assert "medians of two machines: This CPU, 2 cores; That CPU, 2 cores" in result.output
    rows = [paired_row(1.0, 2.0)]
    result, _ = compare(rows, rows, brands=("This CPU", "That CPU"))
    assert "two machines" not in result.output


def test_median_of_zero_is_no_division(compare):
    result, report = compare([plain_row(0.0)], [plain_row(0.0)], "--fail-above=10%")
    assert (result.exit_code, report["rows"][0]["slower"]) == (0, 0)
    result, _ = compare([plain_row(0.0)], [plain_row(5.0)], "--fail-above=10%")
    assert result.exit_code == 1


def test_nothing_in_common_is_no_success(compare):
    result, _ = compare([plain_row(1.0)], [plain_row(1.0, "test_b")], "--fail-above=10%")
    assert result.exit_code == 2
    assert "no row in common" in result.output


@pytest.mark.parametrize("limit", ["", "ten", "-1%", "nan", "inf", "%"])
def test_bad_limits_are_refused(compare, limit):
    result, _ = compare([plain_row(1.0)], [plain_row(1.0)], f"--fail-above={limit}")
    assert result.exit_code == 2
    assert "--fail-above" in result.output


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("{", "Expecting"),
        ("[1]", "neither a benchmark record nor"),
        ("{}", "neither a benchmark record nor"),
        ('{"benchmarks": [], "machine_info": {}}', "'datetime' is a required property"),
        ('{"benchmarks": NaN}', "NaN is not a number"),
        ("[" * 100_000, "bad.json"),
        (json.dumps(made_up.limits()), "the JSON of limits, not a benchmark record"),
        (json.dumps(made_up.record(rows=[{"name": 1}])), "not a benchmark record as expected"),
    ],
)
def test_files_that_are_no_records_are_named(tmp_path, content, part):
    bad, good = tmp_path / "bad.json", tmp_path / "good.json"
    bad.write_text(content)
    good.write_text(json.dumps(made_up.record()))
    result = CliRunner().invoke(main, ["compare", str(good), str(bad)])
    assert result.exit_code == 2
    assert "bad.json" in result.output
    assert part in " ".join(result.output.split())


def test_markup_in_names_is_shown_as_it_is(compare):
    rows = [plain_row(1.0, "test_a[[red]x[/red]]")]
    result, _ = compare(rows, [plain_row(9.0, "test_a[[red]x[/red]]")], "--fail-above=10%")
    assert "FAILED bench_flush.py::test_a[[red]x[/red]]" in result.output

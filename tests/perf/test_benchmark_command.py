import json

import pytest
from click.testing import CliRunner

from kvdefrag.perf import benchmark_command
from kvdefrag.perf.__main__ import main
from kvdefrag.perf.benchmark_record import as_record
from kvdefrag.perf.result_files import read_result

BODY = """
import pytest

@pytest.mark.parametrize("holes", [1, 2])
def test_flush(benchmark, holes):
    benchmark.extra_info.update(layer="flush", holes=holes, backend="host")
    benchmark.pedantic(lambda: None, rounds=3)
    assert holes != {wrong}
"""


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """Run the command on one benchmark file, right or wrong; the result and the record's path."""

    def run(*options, wrong=0):
        path = tmp_path / "bench_tiny.py"
        path.write_text(BODY.format(wrong=wrong))
        monkeypatch.setitem(benchmark_command.FILES, "tiny", path)
        monkeypatch.setattr(benchmark_command, "FILES", {"tiny": path})
        out = tmp_path / "record.json"
        return CliRunner().invoke(main, ["bench", f"--json={out}", *options]), out

    return run


def test_the_record_can_be_read(bench):
    result, out = bench()
    assert result.exit_code == 0, result.output
    record = as_record(read_result(out))
    assert [(row.layer, row.number("holes"), row.rounds) for row in record.rows] == [
        ("flush", 1, 3),
        ("flush", 2, 3),
    ]
    assert [row.name for row in record.rows] == [f"bench_tiny.py::test_flush[{i}]" for i in (1, 2)]


def test_some_can_be_selected(bench):
    result, out = bench("--select=test_flush[2]")
    assert result.exit_code == 0, result.output
    assert len(json.loads(out.read_text())["benchmarks"]) == 1


def test_a_wrong_result_fails(bench):
    result, _ = bench(wrong=2)
    assert result.exit_code == 1
    assert "record:" not in result.output


def test_a_name_that_nothing_has_is_a_bad_option(bench):
    result, _ = bench("--select=no_such_thing")
    assert result.exit_code == 2
    assert "no benchmark has such a name" in result.output


def test_a_missing_package_is_named(bench, monkeypatch):
    monkeypatch.setattr(benchmark_command, "find_spec", lambda name: None)
    result, _ = bench()
    assert result.exit_code == 2
    assert "kvdefrag[perf]" in result.output


def test_without_benchmark_files_no_other_tests_are_run(tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark_command, "FILES", {})
    monkeypatch.setattr(benchmark_command, "_run_pytest", lambda *arguments: 0)
    result = CliRunner().invoke(main, ["bench", f"--json={tmp_path / 'record.json'}"])
    assert result.exit_code == 2
    assert "no bench_*.py" in result.output


def test_every_layer_can_be_chosen():
    result = CliRunner().invoke(main, ["bench", "--help"])
    assert all(layer in result.output for layer in benchmark_command.FILES)


def test_without_json_the_record_gets_a_place(bench, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        benchmark_command, "_run_pytest", lambda files, select, path, environment: 0
    )
    result = CliRunner().invoke(main, ["bench"])
    assert result.exit_code == 0, result.output
    assert "record: results/bench-" in result.output

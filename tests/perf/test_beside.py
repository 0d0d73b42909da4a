import json
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from kvdefrag.perf import benchmark_command
from kvdefrag.perf.benchmark_command import bench
from kvdefrag.perf.beside import environment_of, is_tree, pooled, run_by_turns


def record(median_s, ratio, rounds=10):
    stats = dict.fromkeys(("mean", "median", "min", "max", "q1", "q3"), median_s)
    extra = {
        "paired_ratio_p25": ratio - 1,
        "paired_ratio_p50": ratio,
        "paired_ratio_p75": ratio + 1,
    }
    row = {
        "fullname": "bench_plan.py::test_plan[1]",
        "stats": {**stats, "stddev": 0.0, "iqr": 0.0, "ops": 1 / median_s, "rounds": rounds},
        "extra_info": {**extra, "paired_rounds": rounds, "holes": 7},
    }
    return {"machine_info": {"node": "here"}, "benchmarks": [row]}


def test_rows_of_several_runs_become_one():
    runs = [record(2.0, 5), record(9.0, 3), record(4.0, 8)]
    (row,) = pooled(runs)["benchmarks"]
    assert [row["stats"][key] for key in ("min", "median", "max", "rounds")] == [2, 4, 9, 30]
    assert [row["extra_info"][f"paired_ratio_p{part}"] for part in (25, 50, 75)] == [4, 5, 6]
    assert (row["extra_info"]["paired_rounds"], row["extra_info"]["holes"]) == (30, 7)
    assert runs[0]["benchmarks"][0]["stats"]["median"] == 2.0


def test_each_tree_is_the_first_as_often_as_the_other(project_root, tmp_path):
    order = []

    def run(environment, json_path):
        is_other = str(tmp_path) in environment.get("PYTHONPATH", "")
        order.append("other" if is_other else "this")
        json_path.write_text(json.dumps(record(2.0 if is_other else 1.0, 4)))
        return 0

    this, other = run_by_turns(project_root, 4, tmp_path, run)
    assert order == ["other", "this", "this", "other"] * 2
    assert this["benchmarks"][0]["stats"]["median"] == 1.0
    assert other["benchmarks"][0]["stats"]["median"] == 2.0


def test_a_run_that_fails_ends_it(project_root, tmp_path):
    assert run_by_turns(project_root, 3, tmp_path, lambda environment, json_path: 1) == 1


def test_the_library_is_the_other_trees_and_the_benchmarks_are_these(project_root, tmp_path):
    tree = tmp_path / "tree"
    for folder in ("kernels", "allocator"):
        (tree / folder).mkdir(parents=True)
        (tree / folder / "__init__.py").write_text("")
    (tree / "allocator" / "_facade").mkdir()
    (tree / "allocator" / "_facade" / "__init__.py").write_text("from kvdefrag.allocator import x")
    (tree / "allocator" / "__init__.py").write_text("x = 'of the other tree'")
    assert is_tree(tree)
    environment = environment_of(tree, tmp_path / "links")
    code = "import kvdefrag, kvdefrag.perf.compare; print(kvdefrag.x)"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], env={**os.environ, **environment},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.strip() == "of the other tree", done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--beside", "."], "--beside and --beside-json go together"),
        (["--beside-json", "b.json"], "--beside and --beside-json go together"),
        (["--beside", ".", "--beside-json", "b.json"], "is no source tree of kvdefrag"),
    ],
)
def test_bad_options(tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    found = CliRunner().invoke(bench, options)
    assert found.exit_code == 2
    assert message in found.output


def test_both_records_are_written(project_root, tmp_path, monkeypatch):
    def fake(files, select, json_path, environment):
        json_path.write_text(json.dumps(record(1.0, 4)))
        return 0

    monkeypatch.setattr(benchmark_command, "_run_pytest", fake)
    paths = [tmp_path / "new.json", tmp_path / "old.json"]
    options = ["--json", paths[0], "--beside", project_root, "--beside-json", paths[1]]
    found = CliRunner().invoke(bench, list(map(str, options)))
    assert found.exit_code == 0, found.output
    for path in paths:
        assert json.loads(path.read_text())["benchmarks"][0]["stats"]["rounds"] == 30

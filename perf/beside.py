"""Two source trees measured in one run, by turns, so that a noisy machine does not decide.

Benchmarks run in processes of their own, first with one tree, then with the other, several times
over. The rounds of all runs of a tree are pooled into one record, with its ratios.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

FOLDERS = ("kernels", "allocator")
FACADE = Path("allocator", "_facade", "__init__.py")
HERE = Path(__file__).resolve().parent
ROUNDS = "paired_rounds"
RATIOS = ("paired_ratio_p25", "paired_ratio_p50", "paired_ratio_p75")

Run = Callable[[Mapping[str, str], Path], int]
"""``run(environment, json_path)``: the benchmarks, in a process with it; pytest's exit status."""


def is_tree(tree: Path) -> bool:
    """Whether ``tree`` is a source tree of this project."""
    return (tree / FACADE).is_file() and all((tree / folder).is_dir() for folder in FOLDERS)


def environment_of(tree: Path, links: Path) -> Mapping[str, str]:
    """The environment in which the library is that of ``tree``, and the benchmarks are these here.

    ``links``: a new folder, from which the package is then imported.
    """
    package = links / "kvdefrag"
    package.mkdir(parents=True)
    for folder in FOLDERS:
        (package / folder).symlink_to((tree / folder).resolve(), target_is_directory=True)
    (package / "perf").symlink_to(HERE, target_is_directory=True)
    (package / "__init__.py").symlink_to((tree / FACADE).resolve())
    paths = [str(links), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def run_by_turns(tree: Path, turns: int, scratch: Path, run: Run) -> tuple[Any, Any] | int:
    """The records of this library and of that in ``tree``, each pooled from ``turns`` runs.

    Or the status of a run that failed.
    """
    environments = (os.environ, environment_of(tree, scratch))
    records: tuple[list[Any], list[Any]] = ([], [])
    json_path = scratch / "record.json"
    for turn in range(turns):
        # Each is the first as often as the other.
        for place in (0, 1) if turn % 2 else (1, 0):
            status = run(environments[place], json_path)
            if status:
                return status
            records[place].append(json.loads(json_path.read_text()))
    return pooled(records[0]), pooled(records[1])


def pooled(records: Sequence[Any]) -> Any:
    """One pytest-benchmark record of several: all rounds of a row, and ratios that stand for all.

    Of the ratios' quartiles, one a run, the median is taken.
    """
    first: Any = json.loads(json.dumps(records[0]))
    rows = [{row["fullname"]: row for row in record["benchmarks"]} for record in records]
    for row in first["benchmarks"]:
        same = [found[row["fullname"]] for found in rows if row["fullname"] in found]
        _pool_times(row["stats"], [each["stats"] for each in same])
        for key in RATIOS:
            values = [each["extra_info"][key] for each in same if key in each["extra_info"]]
            if values:
                row["extra_info"][key] = statistics.median(values)
        if ROUNDS in row["extra_info"]:
            row["extra_info"][ROUNDS] = sum(each["extra_info"][ROUNDS] for each in same)
    return first


def _pool_times(stats: dict[str, Any], runs: Sequence[dict[str, Any]]) -> None:
    stats["rounds"] = sum(run["rounds"] for run in runs)
    stats["min"] = min(run["min"] for run in runs)
    stats["max"] = max(run["max"] for run in runs)
    for key in ("mean", "median", "q1", "q3", "stddev"):
        stats[key] = statistics.median(run[key] for run in runs)
    stats["iqr"] = stats["q3"] - stats["q1"]
    stats["ops"] = 1 / stats["mean"] if stats["mean"] else 0.0

"""One pytest-benchmark record as rows: what was run, in which layer, how long it took."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from .result_files import RECORD, ResultError, ResultFile

OURS = "kvdefrag"
UNVERSIONED = "unversioned"
"""What pytest-benchmark writes outside a repository."""

FLUSH, PLAN, ALLOC_FREE, KERNELS = "flush", "plan", "alloc_free", "kernels"


@dataclass(frozen=True)
class Row:
    """One benchmark; times are microseconds: the median and the quartiles around it.

    ``params``: what the benchmark is parametrised over; ``extra``: its ``extra_info``.
    """

    name: str
    operation: str
    layer: str
    contender: str
    median_us: float
    low_us: float
    high_us: float
    rounds: int
    interpreted: bool
    params: dict[str, Any]
    extra: dict[str, Any]

    def number(self, key: str) -> float | None:
        """A figure of ``extra_info``; None where it holds none of this name."""
        value = self.extra.get(key)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return value if is_number else None


@dataclass(frozen=True)
class Record:
    """The rows of one file, with the commit and the machine that they belong to."""

    name: str
    when: str
    commit: str
    machine: str
    cpu: str
    cpu_count: int
    rows: tuple[Row, ...]

    @property
    def measured(self) -> tuple[Row, ...]:
        """The rows that say something about speed: all but those of Triton's interpreter."""
        return tuple(row for row in self.rows if not row.interpreted)

    @property
    def interpreted(self) -> int:
        """How many rows Triton's interpreter ran."""
        return len(self.rows) - len(self.measured)


def as_record(file: ResultFile) -> Record:
    """The record that a file of that kind holds."""
    if file.kind != RECORD:
        raise ResultError(f"{file.name}: this is the JSON of {file.kind}, not a benchmark record")
    cpu = file.data["machine_info"].get("cpu") or {}
    count = cpu.get("count")
    brand = str(cpu.get("brand_raw") or file.data["machine_info"].get("machine") or "unknown CPU")
    cpu_count = count if isinstance(count, int) else 0
    rows = tuple(_row(benchmark) for benchmark in file.data["benchmarks"])
    return Record(
        name=file.name,
        when=file.data["datetime"],
        commit=_commit(file.data.get("commit_info") or {}),
        machine=_machine(rows, f"{brand}, {cpu_count or '?'} cores"),
        cpu=brand,
        cpu_count=cpu_count,
        rows=rows,
    )


def _row(benchmark: dict[str, Any]) -> Row:
    extra = benchmark.get("extra_info", {})
    stats = benchmark["stats"]
    name = re.split(r"[/\\]", benchmark["fullname"].split("::")[0])[-1]
    _, _, rest = benchmark["fullname"].partition("::")
    file_layer = re.fullmatch(r"bench_(\w+)\.py", name)
    return Row(
        name=f"{name}::{rest}" if rest else name,
        operation=_operation(benchmark, extra),
        layer=extra.get("layer") or (file_layer[1] if file_layer else ""),
        contender=extra.get("contender", OURS),
        median_us=stats["median"] * 1e6,
        low_us=stats["q1"] * 1e6,
        high_us=stats["q3"] * 1e6,
        rounds=stats["rounds"],
        interpreted=bool(extra.get("interpreted")) or extra.get("backend") == "interpret",
        params=benchmark.get("params") or {},
        extra=extra,
    )


def _operation(benchmark: dict[str, Any], extra: dict[str, Any]) -> str:
    """What is timed, as in "alloc" or "free": said outright, or by the name of the function."""
    said = extra.get("op") or (benchmark.get("params") or {}).get("op")
    function = benchmark["name"].split("[")[0].removeprefix("test_")
    return said if isinstance(said, str) else function.replace("_", " ")


def _commit(info: dict[str, Any]) -> str:
    """Ten digits of the commit, with a mark if the tree had changes; "" without one."""
    commit = info.get("id")
    if not isinstance(commit, str) or commit in ("", UNVERSIONED):
        return ""
    return commit[:10] + ("+changes" if info.get("dirty") else "")


def _machine(rows: tuple[Row, ...], cpu: str) -> str:
    """Processor, and the GPUs that rows name."""
    devices = {row.extra.get("device") for row in rows if not row.interpreted}
    gpus = sorted(str(device) for device in devices - {None, "", "cpu"})
    return " + ".join([*gpus, cpu])

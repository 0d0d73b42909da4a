"""The headline of the page: a handful of figures, each with what it was measured against."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from . import bandwidth_chart
from .benchmark_record import FLUSH, OURS, Record, Row
from .charts import bytes_text
from .compare import PAIRED_KEY
from .comparison_charts import run_name
from .result_files import ResultFile

SHARE = "% of device copy"
PREFERRED_PAGE_BYTES = 64 << 10
STATIC = "static"


class Tile(NamedTuple):
    """``value`` is "" where the input holds nothing for it; ``alarm`` where something is wrong."""

    label: str
    value: str
    detail: str
    alarm: bool = False


def headline(
    records: Sequence[Record],
    checks: Sequence[ResultFile],
    comparisons: Sequence[ResultFile],
    replays: Sequence[ResultFile],
) -> list[Tile]:
    """Always the same tiles in the same order."""
    flushes = _flush_rows(records)
    return [
        _speed(flushes),
        _read_backs(flushes),
        _bandwidth(checks),
        _hit_rate(comparisons),
        _bytes(replays, comparisons),
    ]


def _flush_rows(records: Sequence[Record]) -> list[Row]:
    for record in reversed(records):
        rows = [row for row in record.measured if row.layer == FLUSH]
        if rows:
            return rows
    return []


def _speed(rows: list[Row]) -> Tile:
    """The largest number of holes that has a baseline: the paired ratio, else that of medians."""
    label = "Flush against its baseline"
    ours = [row for row in rows if row.contender == OURS and row.number("holes")]
    for row in sorted(ours, key=lambda row: -(row.number("holes") or 0)):
        where = f"at {row.number('holes'):,} holes, {row.median_us:,.1f} us a flush"
        ratio = row.number(PAIRED_KEY)
        if ratio:
            baseline = row.extra.get("baseline", "its baseline")
            return Tile(label, f"{ratio:,.1f}x", f"as fast as {baseline}, paired rounds, {where}")
        others = [other for other in rows if _same_case(row, other) and other.contender != OURS]
        if others:
            best = min(others, key=lambda other: other.median_us)
            value = f"{best.median_us / row.median_us:,.1f}x"
            return Tile(label, value, f"as fast as {best.contender}, the fastest other, {where}")
    return Tile(label, "", "needs a benchmark record with flushes")


def _same_case(row: Row, other: Row) -> bool:
    keys = ("holes", "moves", "page_bytes", "fragmentation", "backend", "device")
    return all(row.extra.get(key) == other.extra.get(key) for key in keys)


def _read_backs(rows: list[Row]) -> Tile:
    label = "Read-backs of a flush"
    copies = [row.number("d2h") for row in rows if row.contender == OURS]
    counts = [count for count in copies if count is not None]
    if not counts:
        return Tile(label, "", "needs a benchmark record with flushes")
    detail = f"device-to-host copies, the most over {len(counts)} cases"
    return Tile(label, f"{max(counts):g}", detail)


def _bandwidth(checks: Sequence[ResultFile]) -> Tile:
    label = "Copy bandwidth"
    for check in reversed(checks):
        shares = {
            figure["case"]["page_bytes"]: figure["value"]
            for figure in check.data["figures"]
            if figure["group"] == bandwidth_chart.GROUP
            and figure["what"] == OURS
            and figure["unit"] == SHARE
            and figure["value"] is not None
        }
        if shares:
            page_bytes = PREFERRED_PAGE_BYTES if PREFERRED_PAGE_BYTES in shares else max(shares)
            detail = f"of a device copy, {bytes_text(page_bytes)} a page"
            device = check.data["device"]["name"]
            return Tile(label, f"{shares[page_bytes]:.1f} %", f"{detail}, {device}")
    return Tile(label, "", "needs a check on a GPU")


def _hit_rate(comparisons: Sequence[ResultFile]) -> Tile:
    """Against the static split that did best."""
    label = "Hit rate, shared against split pools"
    for comparison in reversed(comparisons):
        runs = [run for run in comparison.data["comparison"] if run["passed"]]
        ours = [run for run in runs if run["contender"] == OURS]
        static = [run for run in runs if run["contender"] == STATIC]
        if ours and static:
            best = max(static, key=_hit_rate_of)
            gain = 100 * (ours[0]["hit_rate"] - best["hit_rate"])
            detail = (
                f"points: {100 * ours[0]['hit_rate']:.1f} % against "
                f"{100 * best['hit_rate']:.1f} % of the best split ({run_name(best)})"
            )
            return Tile(label, f"{gain:+.1f}", detail)
    return Tile(label, "", "needs a comparison with static splits")


def _bytes(replays: Sequence[ResultFile], comparisons: Sequence[ResultFile]) -> Tile:
    label = "Pages with wrong bytes"
    failed = [
        f"{file.name}: {run_name(run)}"
        for file in comparisons
        for run in file.data["comparison"]
        if not run["passed"]
    ]
    failed += [file.name for file in replays if not file.data["passed"]]
    checks = [file.data["byte_check"] for file in replays if "byte_check" in file.data]
    wrong = sum(check.get("wrong_pages", 0) for check in checks)
    if failed or wrong:
        return Tile(label, f"{wrong:,}", f"failed: {', '.join(failed)}", alarm=True)
    checked = sum(check.get("pages_checked", 0) for check in checks)
    if not checked:
        return Tile(label, "", "needs a replay that verifies")
    where = "one replay" if len(checks) == 1 else f"{len(checks)} replays"
    return Tile(label, "0", f"of {checked:,} compared in {where}")


def _hit_rate_of(run: dict[str, Any]) -> float:
    rate: float = run["hit_rate"]
    return rate

"""The headline of the page: a handful of figures, each with what it was measured against."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from . import bandwidth_chart
from .benchmark_record import FLUSH, OURS, Record, Row
from .charts import bytes_text
from .compare import PAIRED_KEY
from .comparison_charts import cases_of, run_name
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
    """Against each baseline at the most holes that have one, and against the best at the fewest."""
    label = "Flush against its baselines"
    paired = [row for row in rows if row.number("holes") and row.number(PAIRED_KEY)]
    if not paired:
        return Tile(label, "", "needs a benchmark record with flushes")
    most = max(paired, key=lambda row: row.number("holes") or 0)
    (nearest, ratio), *others = _ratios(paired, most)
    also = "".join(f", {other:,.1f}x as {name}" for name, other in others)
    detail = f"as fast as {nearest}{also}, at {most.number('holes'):,} holes"
    alike = [row for row in paired if row.operation == most.operation]
    fewest = min(alike, key=lambda row: row.number("holes") or 0)
    if fewest.number("holes") != most.number("holes"):
        name, least = _ratios(paired, fewest)[0]
        detail += f"; at {fewest.number('holes'):,}, {least:,.1f}x as {name}"
    return Tile(label, f"{ratio:,.1f}x", detail)


def _ratios(rows: list[Row], like: Row) -> list[tuple[str, float]]:
    """Paired ratio of every baseline that was timed at the holes of ``like``, the lowest first."""
    ratios: dict[str, float] = {}
    for row in rows:
        if (row.operation, row.number("holes")) == (like.operation, like.number("holes")):
            of_ours = row.contender == OURS
            baseline = str(row.extra.get("baseline", "its baseline") if of_ours else row.contender)
            ratios.setdefault(baseline, row.number(PAIRED_KEY) or 0)
    return sorted(ratios.items(), key=lambda item: item[1])


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
    """Against the static split that did best, at every pool size of the newest comparison."""
    label = "Hit rate, shared against split pools"
    cases = cases_of(comparisons)
    gains = []
    for case in cases:
        ours = [run["hit_rate"] for run in case.passed if run["contender"] == OURS]
        static = [run for run in case.passed if run["contender"] == STATIC]
        if ours and static and case.file == cases[0].file:
            best = max(static, key=_hit_rate_of)
            gains.append((100 * (ours[0] - best["hit_rate"]), 100 * ours[0], best))
    if not gains:
        return Tile(label, "", "needs a comparison with static splits")
    low, high = (end(gain for gain, _, _ in gains) for end in (min, max))
    if len(gains) > 1:
        detail = f"points over the best static split, {len(gains)} pool sizes"
        return Tile(label, f"{low:+.1f} to {high:+.1f}", detail)
    _, ours_rate, best = gains[0]
    against = f"{ours_rate:.1f} % against {100 * best['hit_rate']:.1f} %"
    return Tile(label, f"{low:+.1f}", f"points: {against} of the best split ({run_name(best)})")


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

"""The short table of a GPU check, from what its JSON holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from . import gpu_check_bandwidth as bandwidth
from . import gpu_check_busy as busy
from . import gpu_check_calls as calls
from . import gpu_check_flush as flush
from . import gpu_check_table_times as table_times

Found = dict[str, Any]
SLOWEST = 5

What = tuple[str, str]
"""Name and unit of a figure."""


def table(report: Found) -> str:
    """Plain text, a hundred columns at most."""
    return "\n".join(_lines(report))


def _lines(report: Found) -> Iterator[str]:
    device, software = report["device"], report["software"]
    versions = ", ".join(f"{name} {software[name]}" for name in ("driver", "torch", "triton"))
    yield f"{device['name']}: {versions}, kvdefrag at {software['commit'] or 'no commit'}"
    shares = (bandwidth.OURS, bandwidth.FUSED, bandwidth.PLAIN)
    columns = {
        bandwidth.DEVICE_COPY: [(bandwidth.DEVICE_COPY, "GB/s")],
        **{what: [(what, "GB/s"), (what, bandwidth.SHARE)] for what in shares},
    }
    yield from _figures(
        report, bandwidth.GROUP, "page_bytes", "page bytes", columns, "GB/s and % of device copy"
    )
    yield from _best_tiles(report)
    whats = (flush.OURS, flush.COPY_ALONE, flush.COPY_HOST_TO_HOST, flush.BATCHED, flush.BY_PAGE)
    yield from _figures(
        report, flush.GROUP, "moves", "moves", {what: [(what, "us")] for what in whats}, "us"
    )
    found = [f["what"] for f in report["figures"] if f["group"] == calls.GROUP]
    whats_of_calls = dict.fromkeys(found)
    yield from _figures(
        report, calls.GROUP, "pages", "pages", {w: [(w, "us")] for w in whats_of_calls}, "us"
    )
    yield from _pairs(report)
    yield from _slowest(report)
    yield from _verdict(report)


def _pairs(report: Found) -> Iterator[str]:
    """One row for two kernels that were timed by turns."""
    rows: dict[tuple[str, str], list[str]] = {}
    for figure in report["figures"]:
        if figure["group"] == table_times.GROUP:
            key = figure["case"]["pair"], figure["case"]["of"]
            rows.setdefault(key, []).append(f"{figure['value']:,.2f}")
    if rows:
        yield f"\n{table_times.GROUP} (us, us, and the first by the second)"
        yield from _aligned([[*key, *values] for key, values in rows.items()])


def _slowest(report: Found) -> Iterator[str]:
    """The calls that took the host longest while the device was busy."""
    found = [f for f in report["figures"] if f["group"] == busy.GROUP]
    if found:
        found.sort(key=lambda figure: -float(figure["value"]))
        yield f"\n{busy.GROUP} (us): the slowest of {len(found)} calls"
        yield from _aligned([[f["what"], f"{f['value']:,.1f}"] for f in found[:SLOWEST]])


def _figures(
    report: Found,
    group: str,
    key: str,
    head: str,
    columns: dict[str, list[What]],
    unit: str,
) -> Iterator[str]:
    """One row for every case of ``group``, one column for one or two figures."""
    cells: dict[int, dict[What, str]] = {}
    for figure in report["figures"]:
        if figure["group"] == group:
            row = cells.setdefault(figure["case"][key], {})
            wrong = figure["value"] is None
            row[figure["what"], figure["unit"]] = "wrong" if wrong else f"{figure['value']:,.1f}"
    if cells:
        yield f"\n{group} ({unit})"
        heads = [head, *columns]
        rows = [
            [f"{case:,}", *("  ".join(row.get(w, "-") for w in what) for what in columns.values())]
            for case, row in sorted(cells.items())
        ]
        yield from _aligned([heads, *rows])


def _best_tiles(report: Found) -> Iterator[str]:
    """The fastest tile of every form and page size, beside the one in use."""
    best: dict[tuple[int, str], Found] = {}
    used: dict[tuple[int, str], Found] = {}
    for figure in report["figures"]:
        if figure["group"] == bandwidth.SWEEP and figure["value"] is not None:
            case = figure["case"]
            key = case["page_bytes"], case["form"]
            if key not in best or figure["value"] > best[key]["value"]:
                best[key] = figure
            if case["in_use"]:
                used[key] = figure
    if best:
        yield f"\n{bandwidth.SWEEP}: the fastest, and the one in use (GB/s)"
        rows = [["page bytes", "form", "fastest", "in use"]]
        for key, figure in sorted(best.items()):
            rows.append([f"{key[0]:,}", key[1], _tile(figure), _tile(used.get(key))])
        yield from _aligned(rows)


def _tile(figure: Found | None) -> str:
    if figure is None:
        return "-"
    case = figure["case"]
    return f"{figure['value']:,.1f} (tile {case['tile']}, {case['warps']} warps)"


def _verdict(report: Found) -> Iterator[str]:
    failed = [check for check in report["checks"] if not check["passed"]]
    yield ""
    for target in report["targets"]:
        verdict = "met" if target["passed"] else "MISSED"
        measured, wanted = f"{target['measured']:,.1f}", f"{target['wanted']:,g}"
        unit, bound = target["unit"], target["bound"]
        yield f"target {verdict}: {target['name']}: {measured} {unit}, {bound} {wanted}"
    for skipped in report["skipped"]:
        yield f"skipped: {skipped['name']}: {skipped['reason']}"
    for name in report["left_out"]:
        yield f"left out, no time: {name}"
    for error in report["errors"]:
        yield f"not measured: {error['name']}: {error['error']}"
    for check in failed:
        yield f"FAILED: {check['name']}: {check['detail']}"
    passed = len(report["checks"]) - len(failed)
    yield f"{passed} of {len(report['checks'])} checks passed in {report['elapsed_s']:.0f} s"


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))

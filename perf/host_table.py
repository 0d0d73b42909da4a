"""The table of `make bench`: host time of free, flush and alloc, the page copy left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from .interleaved import OURS

OPS = ("free", "flush", "alloc")
FRAGMENTATION = 0.25

SGLANG_US = {
    1: (32, 46, 28),
    16: (32, 57, 26),
    256: (34, 154, 29),
    4_096: (77, 1_779, 45),
    65_536: (2_517, 26_600, 266),
}
"""Median microseconds of free, flush and alloc in SGLang 0.5.23, measured on another day."""


def host_table(rows: Sequence[dict[str, Any]]) -> Table:
    """Ours in microseconds, and how many times longer the page-by-page baseline took.

    ``rows``: the records of the benchmarks; a line appears once all three operations are there.
    """
    found = {
        (row["holes"], row["op"]): row
        for row in rows
        if row.get("op") in OPS and row["contender"] == OURS
        if row["fragmentation"] <= FRAGMENTATION
    }
    table = Table("holes", *(f"{op} us" for op in OPS), *(f"{op} x" for op in OPS), "x SGLang")
    for holes in sorted({holes for holes, _ in found}):
        if all((holes, op) in found for op in OPS):
            ours = [found[holes, op] for op in OPS]
            us = [row["median_us"] for row in ours]
            table.add_row(
                f"{holes:,}",
                *(f"{time:,.1f}" for time in us),
                *(f"{row['paired_ratio_p50']:.1f}" for row in ours),
                " / ".join(f"{s / t:.1f}" for s, t in zip(SGLANG_US[holes], us, strict=True))
                if holes in SGLANG_US
                else "",
            )
    return table

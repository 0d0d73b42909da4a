"""Two benchmark records row by row: how much slower the second one is.

Where both rows were timed in turns with a baseline, the ratio to that baseline is compared, so that
a machine that was slower on one day does not decide; elsewhere the medians are. A
change is clear if the quartiles of the two rows do not overlap, in the ratio or in the time.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from .benchmark_record import Record, Row

PAIRED, MEDIAN = "paired ratio", "median"
PAIRED_KEY = "paired_ratio_p50"
"""Median over the rounds of the baseline's time divided by ours: more is better."""

ROUNDS_KEY = "paired_rounds"
CLEAR_ERRORS = 3
"""A ratio has changed if it has by so many standard errors."""

LOW_KEY, HIGH_KEY = "paired_ratio_p25", "paired_ratio_p75"


class Change(NamedTuple):
    """One row in both records. ``slower``: 0.1 if the second takes a tenth longer.

    ``is_clear``: whether the difference stands out of the spread of the rounds.
    """

    name: str
    measure: str
    before: float
    after: float
    slower: float
    is_clear: bool


class Comparison(NamedTuple):
    """What two records have in common, slowest first, and the names of what they have not."""

    changes: tuple[Change, ...]
    missing: tuple[str, ...]
    added: tuple[str, ...]
    same_machine: bool

    def failing(self, limit: float, strict: bool = False) -> tuple[Change, ...]:
        """Rows slower by more than ``limit``, a fraction: the clear ones, or all if ``strict``."""
        slower = (change for change in self.changes if change.slower > limit)
        return tuple(change for change in slower if strict or change.is_clear)


def compare_records(before: Record, after: Record) -> Comparison:
    """Compare all rows but those of the interpreter."""
    old, new = ({row.name: row for row in record.measured} for record in (before, after))
    changes = [_change(old[name], new[name]) for name in old if name in new]
    return Comparison(
        changes=tuple(sorted(changes, key=lambda change: -change.slower)),
        missing=tuple(name for name in old if name not in new),
        added=tuple(name for name in new if name not in old),
        same_machine=before.machine == after.machine,
    )


def _change(old: Row, new: Row) -> Change:
    ratios = old.number(PAIRED_KEY), new.number(PAIRED_KEY)
    if ratios[0] and ratios[1]:
        slower = ratios[0] / ratios[1] - 1
        error = math.hypot(_ratio_error(old), _ratio_error(new))
        is_clear = ratios[0] - ratios[1] > CLEAR_ERRORS * error or new.low_us > old.high_us
        return Change(old.name, PAIRED, ratios[0], ratios[1], slower, is_clear)
    # A clock that ticks too seldom can give a median of 0.
    slower = new.median_us / old.median_us - 1 if old.median_us else float(new.median_us > 0)
    is_clear = new.low_us > old.high_us
    return Change(old.name, MEDIAN, old.median_us, new.median_us, slower, is_clear)


def _ratio_error(row: Row) -> float:
    """The standard error of the median ratio, from its quartiles, as for a normal distribution."""
    low, high, rounds = (row.number(key) for key in (LOW_KEY, HIGH_KEY, ROUNDS_KEY))
    if not low or not high or not rounds:
        return math.inf
    return 0.93 * (high - low) / math.sqrt(rounds)

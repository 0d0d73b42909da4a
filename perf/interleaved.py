"""Rounds of two contenders by turns, so that a noisy machine does not decide between them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import torch
import triton

from .gpu_check_machine import finish

Call = Callable[[], Any]
Prepare = Callable[[], Call]
"""Brings a contender to where a round starts, untimed; returns the call to time."""

OURS = "kvdefrag"
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DEVICE_NAME = torch.cuda.get_device_name(DEVICE) if DEVICE.type == "cuda" else "cpu"
WARM_UP = 2


class Meter:
    """One benchmark, and what its record says beside the time.

    ``benchmark``: pytest-benchmark's fixture. ``rows``: where the record of this row is noted.
    A call ends when the device has done what it queued; on a GPU the device's own time is taken
    with events as well.
    """

    def __init__(self, benchmark: Any, rows: list[dict[str, Any]]) -> None:
        self.subject_s: list[float] = []
        self.other_s: list[float] = []
        self._benchmark = benchmark
        self._rows = rows
        self._event_us: list[float] = []

    def alone(self, call: Call) -> None:
        """Time a call of the host alone, as often as the benchmark sees fit."""
        self._benchmark(call)

    def by_turns(self, subject: Prepare, other: Prepare | None, rounds: int) -> None:
        """Time ``subject``, every round right after one of ``other``."""

        def prepare() -> tuple[tuple[Call], dict[str, Any]]:
            if other is not None:
                self.other_s.append(seconds(other()))
            call = self._ended(subject())
            finish(DEVICE)
            return (call,), {}

        self._benchmark.pedantic(
            lambda call: call(), setup=prepare, rounds=rounds, warmup_rounds=WARM_UP
        )
        if self._benchmark.stats is not None:
            self.subject_s = list(self._benchmark.stats.stats.data)
            self.other_s = self.other_s[-rounds:]

    def record(self, layer: str, contender: str, baseline: str, **figures: Any) -> None:
        """Note the figures of this row; nothing where pytest-benchmark is disabled.

        ``contender`` was timed, ``baseline`` is the one of the two that is not ours. The ratios are
        its times over ours, one a round.
        """
        if self._benchmark.stats is None:
            return
        median_s = self._benchmark.stats.stats.median
        info = {
            "layer": layer,
            "contender": contender,
            "baseline": baseline,
            "device": DEVICE_NAME,
            "torch": torch.__version__,
            "triton": triton.__version__,
            **figures,
        }
        if layer != "replay" and "bytes_moved" in figures:
            # Every byte is read and written.
            info["gbps"] = 2 * figures["bytes_moved"] / median_s / 1e9
        if self.other_s:
            info |= ratios(*self._theirs_and_ours(contender))
            info["other_p50_us"] = statistics.median(self.other_s) * 1e6
        if self._event_us:
            info["event_p50_us"] = statistics.median(self._event_us[-len(self.subject_s) :])
        self._benchmark.extra_info.update(info)
        self._rows.append({**info, "median_us": median_s * 1e6})

    def _theirs_and_ours(self, contender: str) -> tuple[list[float], list[float]]:
        if contender == OURS:
            return self.other_s, self.subject_s
        return self.subject_s, self.other_s

    def _ended(self, call: Call) -> Call:
        if DEVICE.type != "cuda":
            return call

        make_event: Callable[[], Any] = partial(torch.cuda.Event, enable_timing=True)

        def ended() -> None:
            started, done = make_event(), make_event()
            started.record()
            call()
            done.record()
            finish(DEVICE)
            self._event_us.append(started.elapsed_time(done) * 1e3)

        return ended


def seconds(call: Call) -> float:
    """Host time of one call, from an idle device to the end of its work."""
    finish(DEVICE)
    started = perf_counter()
    call()
    finish(DEVICE)
    return perf_counter() - started


def ratios(theirs: Sequence[float], ours: Sequence[float]) -> dict[str, float]:
    """How many times longer the baseline took, round by round: median and quartiles."""
    found = [their / our for their, our in zip(theirs, ours, strict=True)]
    low, _, high = statistics.quantiles(found, n=4) if len(found) > 1 else 3 * found
    return {
        "paired_ratio_p25": low,
        "paired_ratio_p50": statistics.median(found),
        "paired_ratio_p75": high,
        "paired_rounds": len(found),
    }


def backend_name(contender: str, chosen: str) -> str:
    """What a record calls the backend; ``chosen`` is the arena's."""
    if contender != OURS:
        return "torch"
    return "interpret" if chosen == "triton" and DEVICE.type == "cpu" else chosen

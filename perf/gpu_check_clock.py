"""Device time of queued work and host time of calls, in microseconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import torch

from .gpu_check_machine import finish

Run = Callable[[], Any]

HOLD_CYCLES = 400_000
"""About 0.2 ms of waiting on the device: longer than the host takes to queue what is timed."""

EVICT_BYTES = 512 << 20
"""Read between timings; many times any L2."""


class Clock:
    """Times on one device: CUDA events there, the host's own clock on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._event: Callable[[], Any] = partial(torch.cuda.Event, enable_timing=True)
        self._hold: Callable[[int], None] | None = getattr(torch.cuda, "_sleep", None)
        self._scratch: torch.Tensor | None = None

    def evict(self) -> None:
        """Fill the L2 with clean lines of something else, in stream order."""
        if self.device.type != "cuda":
            return
        if self._scratch is None:
            self._scratch = torch.ones(EVICT_BYTES // 8, dtype=torch.int64, device=self.device)
        self._scratch.sum()

    def device_us(self, runs: Sequence[Run], evict: bool = False) -> list[float]:
        """How long the device takes for each of ``runs``, one after the other.

        Each starts behind a wait on the device, so that the host has queued it by then.
        """
        if self.device.type != "cuda":
            return [self.host_us(run) for run in runs]
        events = []
        finish(self.device)
        for run in runs:
            started, ended = self._event(), self._event()
            if evict:
                self.evict()
            if self._hold is not None:
                self._hold(HOLD_CYCLES)
            started.record()
            run()
            ended.record()
            events.append((started, ended))
        finish(self.device)
        return [started.elapsed_time(ended) * 1e3 for started, ended in events]

    def host_us(self, run: Run, wait: bool = True) -> float:
        """From an idle device to the return of ``run``, or to the end of its work if ``wait``."""
        finish(self.device)
        started = perf_counter()
        run()
        if wait:
            finish(self.device)
        return (perf_counter() - started) * 1e6

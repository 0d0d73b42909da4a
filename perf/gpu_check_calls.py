"""Host time of alloc, free and flush: from an idle device until the call returns."""

from __future__ import annotations

from functools import partial

import torch

from kvdefrag import Arena, MultiEndedAllocator, PoolSpec

from .gpu_check_clock import Clock
from .gpu_check_report import Report, require
from .gpu_check_sizes import Sizes

GROUP = "host time of calls"
PAGE_BYTES = 512
WARM_ROUNDS = 3


def measure_calls(device: torch.device, sizes: Sizes, clock: Clock, report: Report) -> None:
    """Free a quarter of the pages at random, flush, allocate as many again."""
    for count in sizes.call_pages:
        name = f"{GROUP}: {count} pages"
        if report.time_for(name, 3):
            with report.measurement(name):
                _measure(device, count, sizes.call_rounds, clock, report)


def _measure(device: torch.device, count: int, rounds: int, clock: Clock, report: Report) -> None:
    live_pages = max(64, 4 * count)
    spec = PoolSpec("pages", page_bytes=PAGE_BYTES, page_size=16)
    arena = Arena((live_pages + 1) * PAGE_BYTES, [spec], device=device, backend="triton")
    arena.prewarm()
    pool = arena["pages"]
    live = pool.alloc(live_pages)
    tokens = torch.empty(count, dtype=torch.int64, device=device)
    samples: dict[str, list[float]] = {
        what: [] for what in ("free", "flush, its read-back included", "alloc", "translate_tokens")
    }
    for number in range(rounds + WARM_ROUNDS):
        order = torch.randperm(live_pages, device=device)
        freed, live = live[order[:count]], live[order[count:]]
        fresh: list[torch.Tensor] = []
        calls = (
            partial(pool.free, freed),
            partial(pool.flush, urgent=True),
            partial(_alloc_into, fresh, pool, count),
            partial(pool.translate_tokens, freed, out=tokens),
        )
        taken = [clock.host_us(call, wait=False) for call in calls]
        live = torch.cat([live, fresh[0]])
        if number >= WARM_ROUNDS:
            for times, us in zip(samples.values(), taken, strict=True):
                times.append(us)
    arena.check(deep=True)
    require(pool.live_pages == live_pages, f"{pool.live_pages} live pages, not {live_pages}")
    for what, times in samples.items():
        report.figure(GROUP, {"pages": count}, what, "us", times)


def _alloc_into(fresh: list[torch.Tensor], pool: MultiEndedAllocator, count: int) -> None:
    fresh.append(pool.alloc(count))

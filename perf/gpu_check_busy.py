"""Host time of calls while the device is busy with something else: none of them waits for it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from time import perf_counter
from typing import Any

import torch

from kvdefrag import Arena, PoolSpec
from kvdefrag.allocator.testing import ManualFence

from .gpu_check_machine import finish
from .gpu_check_promises import excuse_read_backs, sync_debug_mode
from .gpu_check_report import Report, describe, require
from .gpu_check_sizes import Sizes
from .gpu_check_streams import keep_busy, new_event

GROUP = "host time beside a busy device"
LIMIT_US = 2000.0
PAGE_BYTES = 4096
PAGE_SIZE = 16
FLUSHED_PAGES = 64
FLUSH = "flush of 64 pages, its read-back apart"

Calls = dict[str, Callable[[], Any]]


class Scene:
    """A pool, and one that borrows its ids, with room for every call of a round.

    ``pages``: what each call takes or gives, about. ``waited_us``: spent in read-backs.
    """

    def __init__(self, device: torch.device, pages: int) -> None:
        total_bytes = (16 * pages + 2 * FLUSHED_PAGES + 64) * PAGE_BYTES
        specs = [
            PoolSpec("full", PAGE_BYTES, PAGE_SIZE),
            PoolSpec("window", PAGE_BYTES, PAGE_SIZE, "down", ids_from="full"),
        ]
        self.arena = Arena(total_bytes, specs, device=device, backend="triton")
        self.arena.prewarm()
        self.full, self.window = self.arena["full"], self.arena["window"]
        self.pages = pages
        self.waited_us = 0.0
        self.given: list[torch.Tensor] = []
        excuse_read_backs(self.arena, self._read_back)

    @contextmanager
    def _read_back(self, mode: str) -> Iterator[None]:
        started = perf_counter()
        with watched(self.arena.device, mode):
            yield
        self.waited_us += (perf_counter() - started) * 1e6

    def calls(self) -> Calls:
        """The calls of one round, in order; everything that they take is on the device by then."""
        return {**self._of_pages(), **self._of_tokens(), **self._of_borrowed_ids()}

    def flush(self) -> None:
        """An idle flush of at most 64 moves."""
        self.waited_us = 0.0
        moves = self.full.flush(max_moves=FLUSHED_PAGES).moves
        require(moves > 0, "the flush moved no page")

    def end(self) -> None:
        """Give everything back, and look at every table."""
        self.arena.check(deep=True)
        for tokens in self.given:
            self.full.free_tokens(tokens, len(torch.unique(tokens // PAGE_SIZE)))
        self.given.clear()
        require(self.full.live_pages == 0, f"{self.full.live_pages} pages of 'full' are left")
        require(self.window.live_pages == 0, f"{self.window.live_pages} pages of 'window' are left")
        self.arena.check(deep=True)

    def _keep(self, call: Callable[[], torch.Tensor]) -> None:
        self.given.append(call())

    def _of_pages(self) -> Calls:
        full, count = self.full, self.pages
        ids = full.alloc(count)
        lease_of = full.alloc(2)
        self.given.append(lease_of * PAGE_SIZE)
        fence = ManualFence()
        fence.finish()
        return {
            "translate": partial(full.translate, ids),
            "forward_launched": partial(
                self.arena.forward_launched, fence, writes={"full": lease_of}
            ),
            "lease, released": lambda: full.lease(lease_of).release(),
            "free": partial(full.free, ids),
            "alloc": partial(self._keep, lambda: full.alloc(count) * PAGE_SIZE),
        }

    def _of_tokens(self) -> Calls:
        full, count = self.full, self.pages
        tokens = count * PAGE_SIZE
        runs = [full.alloc_tokens(tokens) for _ in range(4)]
        order = torch.randperm(tokens, device=runs[0].device)
        ends = full.alloc_tokens(tokens).view(count, PAGE_SIZE)
        self.given.append(ends.reshape(-1))
        half = count // 2
        last = torch.cat([ends[:half, -1], ends[half:, 3]])
        batch = torch.zeros(count // 4, dtype=torch.int64, device=order.device)
        grown = torch.full_like(batch, 2 * PAGE_SIZE + 3)
        out = torch.empty_like(order)

        mixed = runs[2][order]

        def group() -> None:
            with self.arena.free_group():
                full.free_tokens(mixed, count)
                full.free_token_run(runs[3])

        return {
            "translate_tokens, out given": partial(full.translate_tokens, runs[0], out=out),
            "free_tokens": partial(full.free_tokens, runs[0][order], count),
            "free_token_run": partial(full.free_token_run, runs[1]),
            "free_group of two": group,
            "alloc_tokens": partial(self._keep, partial(full.alloc_tokens, tokens)),
            "decode": partial(self._keep, lambda: full.decode(last, half)[:half]),
            "extend": partial(
                self._keep,
                partial(full.extend, batch, grown, batch - 1, 3 * len(batch), len(batch) * 35),
            ),
        }

    def _of_borrowed_ids(self) -> Calls:
        full, window, count = self.full, self.window, self.pages
        ids = [full.alloc(count) for _ in range(3)]
        self.given.append(ids[0] * PAGE_SIZE)
        gaps = torch.cat([ids[0], torch.full_like(ids[0], -1)])
        return {
            "bind": partial(window.bind, ids[0]),
            "release": partial(window.release, ids[0]),
            "bind again": partial(window.bind, ids[0]),
            "release with gaps": partial(window.release, gaps, count),
            "bind for tokens": partial(window.bind, ids[0]),
            "release_tokens": partial(window.release_tokens, ids[0] * PAGE_SIZE + 1, count),
            "bind for a cascade": partial(window.bind, ids[1]),
            "free with a cascade": partial(full.free, ids[1], cascade={"window": count}),
            "bind for tokens to free": partial(window.bind, ids[2]),
            "free_tokens with a cascade": partial(
                full.free_tokens, ids[2] * PAGE_SIZE + 3, count, cascade={"window": count}
            ),
        }


def check_busy(device: torch.device, sizes: Sizes, report: Report) -> None:
    """Every call in rounds, each with a device that is busy before and after the call."""
    scene = Scene(device, sizes.busy_pages)
    limit_us = LIMIT_US if device.type == "cuda" else float("inf")
    samples: dict[str, list[float]] = {}
    failed: dict[str, str] = {}
    try:
        # The first round loads what torch itself needs, and is not watched.
        _round(device, scene, sizes.busy_ms, "default", {})
        for _ in range(sizes.busy_rounds):
            times = _round(device, scene, sizes.busy_ms, "error", failed)
            for what, us in times.items():
                samples.setdefault(what, []).append(us)
    finally:
        judge(samples, failed, limit_us, report)


def _round(
    device: torch.device, scene: Scene, busy_ms: float, mode: str, failed: dict[str, str]
) -> dict[str, float]:
    calls = scene.calls()
    finish(device)
    keep_busy(device, busy_ms)
    is_idle = _idle_after(device)
    times = {}
    for what, call in calls.items():
        with watched(device, mode):
            times[what] = timed_us(call, what, failed)
            if is_idle():
                failed.setdefault(what, "the device was done with what it was busy with")
                is_idle = bool
    with watched(device, mode):
        whole_us = timed_us(scene.flush, FLUSH, failed)
    times[FLUSH] = whole_us - scene.waited_us
    scene.end()
    return times


def timed_us(call: Callable[[], Any], what: str, failed: dict[str, str]) -> float:
    """Host time of ``call``; an error is noted in ``failed`` and stops nothing."""
    started = perf_counter()
    try:
        call()
    except Exception as error:
        failed.setdefault(what, describe(error))
    return (perf_counter() - started) * 1e6


def _idle_after(device: torch.device) -> Callable[[], bool]:
    """Whether the work queued so far is done; ``bool`` says False, for a device without any."""
    if device.type != "cuda":
        return bool
    event = new_event()
    event.record()
    query: Callable[[], bool] = event.query
    return query


def watched(device: torch.device, mode: str) -> AbstractContextManager[None]:
    """torch's sync debug mode inside the block, on a device that has one."""
    return sync_debug_mode(mode) if device.type == "cuda" else nullcontext()


def judge(
    samples: dict[str, list[float]], failed: dict[str, str], limit_us: float, report: Report
) -> None:
    """One check a call: it did not fail, it did not wait, and it was quick."""
    for what, times in samples.items():
        median = statistics.median(times)
        with report.check(f"{GROUP}: {what}"):
            require(what not in failed, failed.get(what, ""))
            require(median < limit_us, f"{median:.0f} us, at most {limit_us:.0f}")
        report.figure(GROUP, {"rounds": len(times)}, what, "us", times)

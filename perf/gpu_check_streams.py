"""Forwards on a stream of their own, with real events as fences: who waits for whom.

Every scenario runs once with a fence that is ended by hand, on any device, and on a GPU once more
with a stream that sleeps first. The former has loaded by then what the latter must not wait for.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch

from kvdefrag import Arena, MultiEndedAllocator, PoolSpec
from kvdefrag.allocator.testing import ManualFence, page_pattern, stamp_pages, wrong_pages

from .gpu_check_machine import finish
from .gpu_check_report import Report, require

SLEEP_MS = 50.0

PAGE_BYTES = 4096

Work = Callable[[], Any]
Launch = Callable[[Work], "Forward"]


class Forward(NamedTuple):
    """Its fence, and what waits on the host until it has ended."""

    fence: Any
    end: Callable[[], Any]

    def require_running(self, call: str) -> None:
        """Raise Wrong if it has ended: then the host has waited for it in ``call``."""
        require(not self.fence.query(), f"the host waited for the forward in {call}")


def by_hand(work: Work) -> Forward:
    """A forward that does ``work`` when it is ended or waited for."""
    fence = ManualFence(work)
    return Forward(fence, fence.finish)


def on_a_stream(device: torch.device, work: Work) -> Forward:
    """A forward that sleeps and then does ``work``, on a stream of its own."""
    stream_type: Any = torch.cuda.Stream
    stream = stream_type(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    fence = new_event()
    with torch.cuda.stream(stream):
        keep_busy(device, SLEEP_MS)
        work()
        fence.record(stream)
    return Forward(fence, fence.synchronize)


def new_event(**options: bool) -> Any:
    """A ``torch.cuda.Event``, which has no types."""
    event_type: Any = torch.cuda.Event
    return event_type(**options)


def keep_busy(device: torch.device, milliseconds: float) -> None:
    """Let the current stream do nothing for so long; not on a CPU."""
    if device.type == "cuda":
        _sleep(int(milliseconds * cycles_per_ms(device)))


@lru_cache
def cycles_per_ms(device: torch.device) -> float:
    """How far the counter of the device that sleeps are counted by goes in a millisecond."""
    cycles = 20_000_000
    for _ in range(2):
        started, ended = (new_event(enable_timing=True) for _ in range(2))
        started.record()
        _sleep(cycles)
        ended.record()
        finish(device)
    return cycles / float(started.elapsed_time(ended))


def _sleep(cycles: int) -> None:
    sleep: Any = getattr(torch.cuda, "_sleep", None)
    require(sleep is not None, f"torch {torch.__version__} has no torch.cuda._sleep")
    sleep(cycles)


def check_streams(device: torch.device, report: Report) -> None:
    """All scenarios, each with both kinds of fence where there is a GPU."""
    ways: list[tuple[str, Launch]] = [("ended by hand", by_hand)]
    if device.type == "cuda":
        cycles_per_ms(device)
        ways.append(("torch.cuda.Event", partial(on_a_stream, device)))
    for how, launch in ways:
        for scenario in (written_page, read_page, pending_page, leased_page):
            name = scenario.__name__.replace("_", " ")
            with report.check(f"forward in flight: a {name}, {how}"):
                try:
                    scenario(device, launch)
                finally:
                    # The forward may write memory that this scenario is about to give back.
                    finish(device)


def _pool(device: torch.device) -> tuple[Arena, MultiEndedAllocator, torch.Tensor]:
    """An arena of eight pages, all of them live and marked."""
    spec = PoolSpec("pages", page_bytes=PAGE_BYTES, page_size=16)
    arena = Arena(9 * PAGE_BYTES, [spec], device=device, backend="triton")
    arena.prewarm()
    pool = arena["pages"]
    ids = pool.alloc(8)
    stamp_pages(pool, ids)
    finish(device)
    return arena, pool, ids


def _bytes_of(pool: MultiEndedAllocator, page: int) -> torch.Tensor:
    assert pool.pages is not None
    return pool.pages[page]


def written_page(device: torch.device, launch: Launch) -> None:
    """It is not moved before the forward ends; an urgent flush makes the stream wait for it."""
    arena, pool, ids = _pool(device)
    forward = launch(partial(_bytes_of(pool, 8).fill_, 0xAB))
    arena.forward_launched(forward.fence, writes={"pages": ids[7:]})
    pool.free(ids[:1])
    idle = pool.flush()
    forward.require_running("an idle flush")
    require((idle.moves, idle.stopped_by) == (0, "forward"), f"idle flush: {idle}")
    urgent = pool.flush(urgent=True)
    forward.require_running("an urgent flush")
    require(urgent.moves == 1, f"urgent flush: {urgent}")
    forward.end()
    finish(device)
    require(int(pool.translate(ids[7:])) == 1, "the page is not in the hole")
    require(bool((_bytes_of(pool, 1) == 0xAB).all()), "the page was moved before it was written")
    _require_whole(arena, pool, ids[1:7])


def read_page(device: torch.device, launch: Launch) -> None:
    """It is moved at once; its old place is filled again behind the forward, host or not."""
    arena, pool, ids = _pool(device)
    seen = torch.zeros(PAGE_BYTES, dtype=torch.uint8, device=device)
    forward = launch(partial(seen.copy_, _bytes_of(pool, 8)))
    arena.forward_launched(forward.fence)
    pool.free(ids[:1])
    idle = pool.flush()
    forward.require_running("an idle flush")
    require((idle.moves, idle.pending) == (1, 1), f"idle flush: {idle}")
    fresh = pool.alloc(1)
    forward.require_running("an allocation of the pending page")
    _bytes_of(pool, 8).fill_(0xCD)
    forward.end()
    finish(device)
    require(int(pool.translate(fresh)) == 8, "the pending page was not handed out")
    mark = page_pattern(ids[7:], PAGE_BYTES)[0]
    require(torch.equal(seen, mark), "the forward read a page that was filled again")
    _require_whole(arena, pool, ids[1:])


def pending_page(device: torch.device, launch: Launch) -> None:
    """It stays pending while the forward runs and is absorbed once it has ended."""
    arena, pool, ids = _pool(device)
    forward = launch(lambda: None)
    arena.forward_launched(forward.fence)
    pool.free(ids[:1])
    first = pool.flush()
    again = pool.flush()
    forward.require_running("an idle flush")
    require((first.pending, again.pending) == (1, 1), f"idle flushes: {first}, {again}")
    forward.end()
    last = pool.flush()
    require((last.pending, last.absorbed) == (0, 1), f"after the forward: {last}")
    _require_whole(arena, pool, ids[1:])


def leased_page(device: torch.device, launch: Launch) -> None:
    """Freed, it is neither moved nor handed out before the lease is released."""
    arena, pool, ids = _pool(device)
    forward = launch(lambda: None)
    arena.forward_launched(forward.fence)
    lease = pool.lease(ids[7:])
    pool.free(ids[7:])
    pool.free(ids[2:3])
    idle = pool.flush()
    forward.require_running("a flush below a lease")
    require((idle.moves, idle.pending) == (0, 2), f"flush under a lease: {idle}")
    require(pool.available() == 0, f"{pool.available()} pages while all free ones are leased")
    lease.release()
    fresh = pool.alloc(2)
    forward.require_running("the end of a lease")
    stamp_pages(pool, fresh)
    forward.end()
    pages = sorted(pool.translate(fresh).tolist())
    require(pages == [3, 8], f"handed out after the lease: {pages}")
    _require_whole(arena, pool, torch.cat([ids[:2], ids[3:7], fresh]))


def _require_whole(arena: Arena, pool: MultiEndedAllocator, ids: torch.Tensor) -> None:
    wrong = wrong_pages(pool, ids)
    require(not wrong, "; ".join(wrong[:3]))
    arena.check(deep=True)

"""Device time of kernels that change the tables, each beside a plainer one in the same rounds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import torch

from kvdefrag.kernels.bind import bind, unbind
from kvdefrag.kernels.borrow import bind_borrowed
from kvdefrag.kernels.record import RECORD_WORDS
from kvdefrag.kernels.take import Take
from kvdefrag.kernels.token_free import unbind_tokens
from kvdefrag.kernels.zero import zero_pages

from .gpu_check_clock import Clock
from .gpu_check_report import Report, require
from .gpu_check_sizes import Sizes

GROUP = "table kernels"
FREES, IDS = "unbind_tokens, one program", "unbind of as many ids"
BORROWED, OWN = "bind_borrowed", "bind of as many pages"
ZEROED, FILLED = "zero_pages", "torch fill_ of as many bytes"
RATIO = "ratio"

PAGE_SIZE = 16
CALL_TAG = 7
WARM_ROUNDS = 2

Run = Callable[[], Any]


class State:
    """Tables of ``ids`` pages, all bound in shuffled order or none, and lists; a way back."""

    def __init__(self, device: torch.device, ids: int, bound: bool) -> None:
        generator = torch.Generator(device).manual_seed(ids)
        self.pages = torch.randperm(ids, device=device, generator=generator) + 1
        self.ids = torch.randperm(ids, device=device, generator=generator) + 1
        self.v2p, self.p2v = (
            torch.full((ids + 1,), -1, dtype=torch.int64, device=device) for _ in range(2)
        )
        self.v2p[0] = self.p2v[0] = 0
        if bound:
            self.v2p[self.ids], self.p2v[self.pages] = self.pages, self.ids
        self.holes, self.free_ids = torch.full((2, ids), -7, device=device).unbind()
        self.record = torch.zeros(RECORD_WORDS, dtype=torch.int64, device=device)
        self.marks = torch.zeros_like(self.v2p)
        self.serials = count(1)
        self._saved = self.v2p.clone(), self.p2v.clone()

    def restore(self) -> None:
        """The tables as they were."""
        self.v2p.copy_(self._saved[0])
        self.p2v.copy_(self._saved[1])

    def require_changed(self, what: str, pages: int) -> None:
        """Raise Wrong unless ``pages`` pages have been bound or unbound, both tables alike."""
        for table, saved in zip((self.v2p, self.p2v), self._saved, strict=True):
            changed = int((table != saved).sum())
            require(changed == pages, f"{what}: {changed} rows changed, not {pages}")
        require(not self.record.any(), f"{what}: a fault was recorded")


def measure_tables(device: torch.device, sizes: Sizes, clock: Clock, report: Report) -> None:
    """Frees by token, pages for borrowed ids, zeros."""
    for ids in sizes.timed_ids:
        for measure in (_measure_frees, _measure_binds):
            name = f"{GROUP}: {measure.__name__.split('_')[-1]} of {ids} ids"
            if report.time_for(name, 3):
                with report.measurement(name):
                    measure(device, ids, sizes.repetitions, clock, report)
    for page_bytes in sizes.zeroed_page_bytes:
        name = f"{GROUP}: zeros in {page_bytes}-byte pages"
        if report.time_for(name, 3):
            with report.measurement(name):
                _measure_zeros(device, page_bytes, sizes, clock, report)


def _measure_frees(
    device: torch.device, ids: int, repetitions: int, clock: Clock, report: Report
) -> None:
    """``ids`` tokens of a sixteenth as many pages, shuffled, and ``ids`` page ids."""
    state = State(device, ids, bound=True)
    pages = max(1, ids // PAGE_SIZE)
    tokens = (state.ids[:pages, None] * PAGE_SIZE + torch.arange(PAGE_SIZE, device=device)).view(-1)
    tokens = tokens[torch.randperm(tokens.numel(), device=device)]
    slots = (state.holes, 0, state.free_ids, 0, state.record)

    def by_token() -> None:
        unbind_tokens(
            state.v2p, state.p2v, state.marks, tokens, PAGE_SIZE, pages, *slots,
            next(state.serials), CALL_TAG,
        )  # fmt: skip

    def by_id() -> None:
        unbind(state.v2p, state.p2v, state.ids, *slots, CALL_TAG)

    for what, call, changed in ((FREES, by_token, pages), (IDS, by_id, ids)):
        _require_change(state, what, call, changed)
    case = {"of": f"{ids:,} ids"}
    time_pair(case, (FREES, by_token), (IDS, by_id), state.restore, repetitions, clock, report)


def _measure_binds(
    device: torch.device, ids: int, repetitions: int, clock: Clock, report: Report
) -> None:
    """Pages in shuffled order, for ids in shuffled order."""
    state = State(device, ids, bound=False)
    take = Take(ids, 0, ids, 0, 0, 1, 1, 0, ids, 1)
    lender = torch.ones_like(state.v2p)

    def borrowed() -> None:
        bind_borrowed(
            state.v2p, state.p2v, lender, state.marks, state.ids, state.pages, state.record, take,
            next(state.serials), CALL_TAG,
        )  # fmt: skip

    def own() -> None:
        bind(state.v2p, state.p2v, state.pages, state.ids, state.record, take, CALL_TAG)

    for what, call in ((BORROWED, borrowed), (OWN, own)):
        _require_change(state, what, call, ids)
    case = {"of": f"{ids:,} ids"}
    time_pair(case, (BORROWED, borrowed), (OWN, own), state.restore, repetitions, clock, report)


def _require_change(state: State, what: str, call: Run, pages: int) -> None:
    """Twice, since the second launch goes another way: through the kept handle."""
    for _ in range(2):
        state.restore()
        call()
        state.require_changed(what, pages)


def _measure_zeros(
    device: torch.device, page_bytes: int, sizes: Sizes, clock: Clock, report: Report
) -> None:
    """Half of the pages of a buffer, shuffled, and as many bytes in one piece."""
    pages = max(1, sizes.moved_bytes // page_bytes)
    state = State(device, pages, bound=True)
    buffer = torch.full(((2 * pages + 1) * page_bytes,), 0x5A, dtype=torch.uint8, device=device)
    p2v = torch.full((2 * pages + 1,), -1, dtype=torch.int64, device=device)
    places = 2 * state.pages - 1
    p2v[places], state.v2p[state.ids] = state.ids, places
    take = Take(pages, 0, pages, 0, 0, 1, 1, 0, 0, 1)

    def ours() -> None:
        zero_pages(buffer, page_bytes, state.v2p, p2v, places, state.record, take)

    byte_count = pages * page_bytes
    filled = partial(buffer[-byte_count:].fill_, 0)
    for _ in range(2):
        buffer.fill_(0x5A)
        wanted = buffer.clone()
        wanted.view(-1, page_bytes)[places] = 0
        ours()
        require(torch.equal(buffer, wanted), f"{ZEROED}: other bytes than those of the pages")
    case = {"of": f"{pages:,} pages of {page_bytes:,} bytes"}
    restore = partial(buffer[:1].fill_, 1)
    time_pair(case, (ZEROED, ours), (FILLED, filled), restore, sizes.repetitions, clock, report)


def time_pair(
    case: dict[str, Any],
    ours: tuple[str, Run],
    other: tuple[str, Run],
    restore: Run,
    repetitions: int,
    clock: Clock,
    report: Report,
) -> None:
    """Both by turns, each after ``restore``; their times, and ours as a multiple of the other."""
    turn = [restore, ours[1], restore, other[1]]
    times = clock.device_us(turn * (repetitions + WARM_ROUNDS))[len(turn) * WARM_ROUNDS :]
    mine, theirs = times[1::4], times[3::4]
    case = {**case, "pair": f"{ours[0]} beside {other[0]}"}
    report.figure(GROUP, case, ours[0], "us", mine)
    report.figure(GROUP, case, other[0], "us", theirs)
    ratios = [a / b for a, b in zip(mine, theirs, strict=True)]
    report.figure(GROUP, case, RATIO, "x", ratios)

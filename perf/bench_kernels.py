"""The kernels, or their host twins, beside the torch operators that do the same.

Copied pages and tables are compared with the torch form before a time is reported. In Triton's
interpreter the rows are marked ``interpreted``: they show that a kernel runs, never how fast.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from triton.runtime.interpreter import InterpretedFunction

from kvdefrag.kernels.backend import choose_backend
from kvdefrag.kernels.rebind import _rebind_kernel
from kvdefrag.kernels.record import RECORD_WORDS
from kvdefrag.perf.baseline_pool import copy_rows
from kvdefrag.perf.gpu_check_kernels import copy_plain
from kvdefrag.perf.interleaved import DEVICE, OURS, Meter, backend_name

KIB = 1024
ROUNDS = 51
INTERPRETED_ROUNDS = 3
INTERPRETED = DEVICE.type == "cpu" and isinstance(_rebind_kernel, InterpretedFunction)

COPY_CASES = [("auto", 16, 4 * KIB), ("auto", 256, 4 * KIB), ("auto", 4_096, 512)]
COPY_CASES += [("auto", moves, 64 * KIB) for moves in (16, 256)] + [("auto", 16, 1024 * KIB)]
TABLE_CASES = [("auto", moves) for moves in (1, 16, 256, 4_096, 65_536)]
if INTERPRETED:
    COPY_CASES.append(("triton", 16, 4 * KIB))
    TABLE_CASES.append(("triton", 256))

Call = Callable[[], Any]


def compare(meter: Meter, backend: Any, ours: Call, theirs: Call, **figures: Any) -> None:
    """Time ours beside the torch form, and record the row."""
    label = backend_name(OURS, backend.name)
    before = backend.launches
    ours()
    figures["launches"] = backend.launches - before
    if label == "interpret":
        meter.by_turns(lambda: ours, None, INTERPRETED_ROUNDS)
        figures["interpreted"] = True
    else:
        meter.by_turns(lambda: ours, lambda: theirs, ROUNDS)
    meter.record("kernels", OURS, "torch", backend=label, d2h=0, h2d=0, **figures)


def pairs(moves: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Distinct sources and targets, int64 [moves] each, among pages 1 to 4 * moves."""
    generator = torch.Generator().manual_seed(moves)
    ids = torch.randperm(4 * moves, generator=generator)[: 2 * moves] + 1
    return ids[:moves].to(DEVICE), ids[moves:].to(DEVICE)


@pytest.mark.parametrize(("backend", "moves", "page_bytes"), COPY_CASES)
def test_copy(meter: Meter, backend: str, moves: int, page_bytes: int) -> None:
    chosen = choose_backend(backend, DEVICE)
    generator = torch.Generator().manual_seed(page_bytes)
    pages = torch.randint(
        256, (4 * moves + 1, page_bytes), dtype=torch.uint8, generator=generator
    ).to(DEVICE)
    sources, targets = pairs(moves)
    expected = pages.clone()
    expected[targets] = pages[sources]
    buffer = pages.view(-1)
    record = torch.zeros(RECORD_WORDS, dtype=torch.int64, device=DEVICE)
    operands = [chosen.operand(tensor) for tensor in (buffer, sources, targets, record)]

    def ours() -> None:
        chosen.copy_pages(*operands[:3], page_bytes, operands[3])

    ours()
    assert torch.equal(pages, expected)
    compare(
        meter,
        chosen,
        ours,
        lambda: plain(pages, sources, targets),
        op="copy",
        moves=moves,
        pages_moved=moves,
        page_bytes=page_bytes,
        bytes_moved=moves * page_bytes,
    )
    assert torch.equal(pages, expected)


def plain(pages: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor) -> None:
    """The straightforward kernel on a GPU, whole rows by torch elsewhere."""
    if DEVICE.type == "cuda":
        copy_plain(pages.view(-1), sources, targets, pages.shape[1])
    else:
        copy_rows(pages, sources, targets)


class Tables:
    """v2p and p2v with sources bound and targets free; moved forth and back."""

    def __init__(self, moves: int) -> None:
        self.sources, self.targets = pairs(moves)
        self.p2v = torch.full((4 * moves + 1,), -1, dtype=torch.int64, device=DEVICE)
        self.v2p = self.p2v.clone()
        self.ids = torch.arange(1, moves + 1, device=DEVICE)
        self.v2p[0] = self.p2v[0] = 0
        self.v2p[self.ids] = self.sources
        self.p2v[self.sources] = self.ids

    def move(self) -> None:
        """One gather and three index writes; the next call moves the pages back."""
        virtual_ids = self.p2v[self.sources]
        torch._assert_async((virtual_ids >= 0).all())
        self.v2p[virtual_ids] = self.targets
        self.p2v[self.targets] = virtual_ids
        self.p2v[self.sources] = -1
        self.sources, self.targets = self.targets, self.sources


@pytest.mark.parametrize(("backend", "moves"), TABLE_CASES)
def test_tables(meter: Meter, backend: str, moves: int) -> None:
    """Validate the pairs and rewrite both tables; twice, forth and back."""
    chosen = choose_backend(backend, DEVICE)
    mine, theirs = Tables(moves), Tables(moves)
    scratch = torch.empty(moves, dtype=torch.int64, device=DEVICE)
    record = torch.zeros(RECORD_WORDS, dtype=torch.int64, device=DEVICE)
    words = (mine.v2p, mine.p2v, mine.sources, mine.targets, scratch, record)
    v2p, p2v, sources, targets, virtual_ids, faults = (chosen.operand(part) for part in words)

    def move(low: Any, high: Any) -> None:
        chosen.gather_virtual(v2p, p2v, low, high, virtual_ids, faults, 0)
        chosen.rebind(v2p, p2v, low, high, virtual_ids, faults)

    def forth_and_back() -> None:
        move(sources, targets)
        move(targets, sources)

    def their_forth_and_back() -> None:
        theirs.move()
        theirs.move()

    move(sources, targets)
    theirs.move()
    assert torch.equal(mine.v2p, theirs.v2p)
    assert torch.equal(mine.p2v, theirs.p2v)
    assert not record.any()
    move(targets, sources)
    theirs.move()
    compare(meter, chosen, forth_and_back, their_forth_and_back, op="tables", moves=moves)
    assert torch.equal(mine.v2p, theirs.v2p)
    assert torch.equal(mine.p2v, theirs.p2v)
    assert not record.any()


@pytest.mark.parametrize(("backend", "ids"), TABLE_CASES)
def test_translate(meter: Meter, backend: str, ids: int) -> None:
    """Look up half bound, half unbound ids; the unbound ones give the sink."""
    chosen = choose_backend(backend, DEVICE)
    tables = Tables(ids)
    generator = torch.Generator().manual_seed(ids)
    asked = (torch.randperm(2 * ids, generator=generator)[:ids] + 1).to(DEVICE)
    v2p, operand = chosen.operand(tables.v2p), chosen.operand(asked)
    num_pages = len(tables.p2v)

    def theirs() -> torch.Tensor:
        return tables.v2p[asked].clamp(min=0)

    assert torch.equal(chosen.translate(v2p, operand, num_pages), theirs())
    compare(
        meter,
        chosen,
        lambda: chosen.translate(v2p, operand, num_pages),
        theirs,
        op="translate",
        ids=ids,
    )

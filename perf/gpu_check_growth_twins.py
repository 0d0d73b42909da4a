"""The kernels that hand pages out as tokens, on the device against their host twins."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch

from kvdefrag.kernels.launch import LANES, Words
from kvdefrag.kernels.token_extend import extend, extend_host
from kvdefrag.kernels.token_grow import bind_tokens, bind_tokens_host, decode, decode_host

from .gpu_check_guarded import (
    CALL_TAG,
    FORMS,
    Case,
    Grant,
    Guarded,
    Tables,
    blank_record,
    check_cases,
    grant_of,
    make_tables,
    page_sizes,
)
from .gpu_check_report import Report
from .gpu_check_sizes import Sizes
from .gpu_check_token_twins import wide_page_size


def check_growth_twins(device: torch.device, sizes: Sizes, report: Report) -> None:
    """Pages as tokens, one token more and many tokens more, at every count."""
    makers = (tokens_of_pages, decode_steps, extensions)
    check_cases(device, sizes.grown_counts, makers, report)


def lists_of(grant: Grant) -> tuple[Guarded, Guarded]:
    """Its holes and free ids."""
    return Guarded(grant.holes), Guarded(grant.free_ids)


def _spoilt(tables: Tables, count: int, fault: str, step: int = 1) -> Grant:
    """A grant with one ``fault``: a void page, a void id, or a page that is taken."""
    grant = grant_of(tables, count, step)
    if count > 5:
        if fault == "void page":
            grant.holes[3] = -1
        if fault == "void id":
            grant.free_ids[4] = -1
        if fault == "taken":
            grant.holes[2] = tables.pages[0]
    return grant


def _faults(count: int) -> Iterator[str]:
    """A corrupt state stops programs of the same launch that start later: within one program."""
    yield from ("", "void page", "void id", "stopped")
    if count <= LANES:
        yield "taken"


def tokens_of_pages(count: int) -> Iterator[Case]:
    """``count`` pages of several sizes, all tokens of them and some, up and down."""
    tables = make_tables(count, 21)
    for page_size in page_sizes(count):
        for step in (1, -1):
            for fault in _faults(count):
                grant = _spoilt(tables, count, fault, step)
                arguments = (
                    Guarded(tables.v2p), Guarded(tables.p2v), *lists_of(grant),
                    blank_record(fault == "stopped"), grant.take,
                    count * page_size - page_size // 2, page_size, CALL_TAG,
                )  # fmt: skip
                yield Case(bind_tokens, bind_tokens_host, arguments)


def decode_steps(count: int) -> Iterator[Case]:
    """A batch of ``count`` sequences, of which some fill their page; tokens and counts off."""
    tables = make_tables(count, 22)
    for page_size in page_sizes(count):
        last = _last_tokens(tables, count, page_size)
        for fault in _faults(count):
            yield _step(tables, last, page_size, fault=fault)
        for dtype, stride in FORMS:
            yield _step(tables, last, page_size, dtype, stride)
        yield _step(tables, last, page_size, beyond=2)
        yield _step(tables, last, page_size, beyond=-1)
        # Not one that this very launch hands out, which another program may see bound.
        unbound = int(tables.free_ids[-1]) * page_size
        for bad in (-2, len(tables.v2p) * page_size, 2**40, unbound):
            wrong = last.copy()
            wrong[count // 2] = bad
            yield _step(tables, wrong, page_size)
    wide = wide_page_size(tables)
    yield _step(tables, _last_tokens(tables, count, wide), wide)


def _last_tokens(tables: Tables, count: int, page_size: int) -> Words:
    draw = np.random.default_rng(count)
    last = tables.ids[:count] * page_size + draw.integers(0, page_size, count)
    full = draw.random(count) < 0.3
    last[full] = tables.ids[:count][full] * page_size + page_size - 1
    last[draw.random(count) < 0.2] = -1
    return last


def _step(
    tables: Tables,
    last: Words,
    page_size: int,
    dtype: torch.dtype = torch.int64,
    stride: int = 1,
    fault: str = "",
    beyond: int = 0,
) -> Case:
    in_range = (last >= -1) & (last < len(tables.v2p) * page_size)
    pages = int((in_range & ((last + 1) % page_size == 0)).sum())
    grant = _spoilt(tables, min(len(last), max(0, pages + beyond)), fault)
    arguments = (
        Guarded(tables.v2p), Guarded(tables.p2v), Guarded(last, dtype, stride), page_size,
        *lists_of(grant), blank_record(fault == "stopped"), grant.take, CALL_TAG,
    )  # fmt: skip
    return Case(decode, decode_host, arguments)


class Batch(NamedTuple):
    """Sequences that grow: lengths and last tokens, int64 [batch]."""

    prefix_lens: Words
    new_lens: Words
    last_tokens: Words

    def fresh_pages(self, page_size: int) -> int:
        """Pages that they take, those with lengths out of order none."""
        held, needed = (-(-lens // page_size) for lens in (self.prefix_lens, self.new_lens))
        good = (self.prefix_lens >= 0) & (self.prefix_lens <= self.new_lens)
        return int((needed - held)[good].sum())

    def tokens(self) -> int:
        """Tokens that they grow by, likewise."""
        grown = self.new_lens - self.prefix_lens
        return int(grown[(self.prefix_lens >= 0) & (grown >= 0)].sum())


def extensions(count: int) -> Iterator[Case]:
    """Few long sequences and many short ones, about ``count`` pages in all; lengths and last
    tokens that are off, and counts.
    """
    for page_size in page_sizes(count):
        for rows in sorted({1, min(count, LANES + 1)}):
            tables = make_tables(count + rows, 23)
            batch = _batch(tables, count, rows, page_size)
            for dtype, stride in FORMS:
                yield _extension(tables, batch, page_size, dtype, stride)
            yield _extension(tables, batch, page_size, stopped=True)
            for more_pages, more_tokens in ((1, 0), (-1, 0), (0, 3), (0, -1), (2, 40)):
                yield _extension(tables, batch, page_size, beyond=(more_pages, more_tokens))
            yield from _bad_batches(tables, batch, page_size)
    wide = wide_page_size(tables)
    # Inside the last page: the kernel goes through every token of a fresh one.
    batch = Batch(np.array([5]), np.array([205]), tables.ids[:1] * wide + 4)
    yield _extension(tables, batch, wide)


def _batch(tables: Tables, count: int, rows: int, page_size: int) -> Batch:
    draw = np.random.default_rng(count + rows)
    prefix = draw.integers(0, 3 * page_size + 1, rows)
    share = max(1, count // rows)
    new = prefix + draw.integers(0, share * page_size + 1, rows)
    last = tables.ids[:rows] * page_size + (prefix - 1) % page_size
    last[prefix == 0] = -1
    return Batch(prefix, new, last)


def _bad_batches(tables: Tables, batch: Batch, page_size: int) -> Iterator[Case]:
    """One sequence that is refused, in the middle."""
    row = len(batch.prefix_lens) // 2
    for prefix, new in ((-1, 4), (9, 8), (0, -3)):
        wrong = Batch(*(words.copy() for words in batch))
        wrong.prefix_lens[row], wrong.new_lens[row] = prefix, new
        yield _extension(tables, wrong, page_size)
    if page_size > 1:
        unbound = int(tables.free_ids[-1]) * page_size
        for bad in (-1, unbound, unbound + 1, len(tables.v2p) * page_size, 2**40):
            wrong = Batch(*(words.copy() for words in batch))
            wrong.prefix_lens[row], wrong.new_lens[row] = 1, page_size + 1
            wrong.last_tokens[row] = bad
            yield _extension(tables, wrong, page_size)


def _extension(
    tables: Tables,
    batch: Batch,
    page_size: int,
    dtype: torch.dtype = torch.int64,
    stride: int = 1,
    stopped: bool = False,
    beyond: tuple[int, int] = (0, 0),
) -> Case:
    pages = max(0, batch.fresh_pages(page_size) + beyond[0])
    tokens = max(0, batch.tokens() + beyond[1])
    grant = grant_of(tables, pages)
    arguments = (
        Guarded(tables.v2p), Guarded(tables.p2v),
        *(Guarded(words, dtype, stride) for words in batch), tokens, page_size,
        *lists_of(grant), blank_record(stopped), grant.take, CALL_TAG,
    )  # fmt: skip
    return Case(extend, extend_host, arguments)

"""The kernels that take pages back by token, on the device against their host twins."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch

from kvdefrag.kernels.launch import LANES, Words
from kvdefrag.kernels.token_free import unbind_tokens, unbind_tokens_host
from kvdefrag.kernels.token_group import Segment, unbind_group, unbind_group_host
from kvdefrag.kernels.token_run import unbind_run, unbind_run_host

from .gpu_check_guarded import (
    CALL_TAG,
    FIRST_AT,
    FORMS,
    Case,
    Guarded,
    Tables,
    blank_record,
    check_cases,
    list_of,
    make_tables,
    page_sizes,
)
from .gpu_check_report import Report
from .gpu_check_sizes import Sizes

SERIAL = 6


def check_token_twins(device: torch.device, sizes: Sizes, report: Report) -> None:
    """Sets, groups and runs of tokens, at every count."""
    check_cases(device, sizes.token_counts, (token_sets, token_groups, token_runs), report)


class Sample(NamedTuple):
    """Tokens of distinct pages of a table, in any order, [tokens]; ``page_count`` of them."""

    tables: Tables
    tokens: Words
    page_size: int
    page_count: int


def sample_of(count: int, page_size: int, seed: int) -> Sample:
    """``count`` tokens, about three of a page, shuffled."""
    draw = np.random.default_rng(seed)
    page_count = max(1, count // 3)
    tables = make_tables(page_count, seed)
    pages = np.concatenate([np.arange(page_count), draw.integers(0, page_count, count)])[:count]
    tokens = tables.ids[draw.permutation(pages)] * page_size
    return Sample(tables, tokens + draw.integers(0, page_size, count), page_size, page_count)


def wide_page_size(tables: Tables) -> int:
    """So many tokens a page that token ids need 64 bits."""
    return int(2**31 // len(tables.v2p) + 1)


def holders_of(tables: Tables, held: int = 0) -> Guarded:
    """Two borrowers that hold no id that is freed, but for ``held`` if it is one."""
    rows = np.full((2, len(tables.v2p)), -1, np.int64)
    rows[:, 0] = 0
    rows[0, tables.ids[-3:]] = 5
    if held:
        rows[1, held] = 9
    return Guarded(rows.reshape(-1), rows=2)


def marks_of(tables: Tables) -> Guarded:
    """Marks of the call before, at their highest."""
    marks = np.full(len(tables.v2p), (SERIAL - 1) * 2**31 + 2**31 - 1)
    return Guarded(marks, scratch=True)


def token_sets(count: int) -> Iterator[Case]:
    """Good ones of every form; a token, a page or a count that is off; ids of another pool."""
    for page_size in page_sizes(count):
        sample = sample_of(count, page_size, 11)
        for dtype, stride in FORMS:
            yield _set(sample, tokens=Guarded(sample.tokens, dtype, stride))
    wide = wide_page_size(make_tables(max(1, count // 3), 12))
    yield _set(sample_of(count, wide, 12))
    yield from _bad_sets(sample_of(count, 16, 13))
    for page_size in (1, 16):
        yield from _gaps(sample_of(count, page_size, 14))


def _bad_sets(sample: Sample) -> Iterator[Case]:
    tables, page_size, count = sample.tables, sample.page_size, sample.page_count
    middle = len(sample.tokens) // 2
    unbound = int(tables.free_ids[0])
    end = len(tables.v2p) * page_size
    for bad in (0, page_size - 1, -1, end, end - 1, unbound * page_size + 1, 2**40):
        tokens = sample.tokens.copy()
        tokens[middle] = bad
        pages = tokens // page_size
        named = pages[(tokens >= page_size) & (tokens < end)]
        yield _set(sample, tokens=Guarded(tokens), page_count=len(np.unique(named)))
        # Both a token and the number of pages: the token comes first.
        yield _set(sample, tokens=Guarded(tokens), page_count=count + 3)
    for differs in (0, count - 1, count + 1, count + 300):
        yield _set(sample, page_count=differs)
    held = int(sample.tokens[middle] // page_size)
    yield _set(sample, holders=holders_of(tables))
    yield _set(sample, holders=holders_of(tables, held))
    yield _set(sample, stopped=True)
    if len(sample.tokens) <= LANES:
        p2v = tables.p2v.copy()
        p2v[tables.v2p[held]] = tables.ids[-1]
        yield _set(sample._replace(tables=tables._replace(p2v=p2v)))


def _gaps(sample: Sample) -> Iterator[Case]:
    """Ids that stay another pool's: -1, tokens of page 0 and of pages not here are passed over."""
    tables, page_size = sample.tables, sample.page_size
    yield _set(sample, borrowed=True)
    tokens = sample.tokens.copy()
    tokens[::3] = -1
    tokens[1::5] = page_size - 1
    tokens[2::7] = tables.free_ids[0] * page_size
    named = tokens // page_size
    found = len(np.unique(named[(named > 0) & (tables.v2p[np.maximum(named, 0)] != -1)]))
    for dtype, stride in FORMS:
        ids = Guarded(tokens, dtype, stride)
        yield _set(sample, tokens=ids, page_count=found, borrowed=True)
    yield _set(sample, tokens=Guarded(tokens), page_count=found + 1, borrowed=True)
    for bad in (-2, len(tables.v2p) * page_size, 2**40):
        tokens[len(tokens) // 2] = bad
        named = tokens // page_size
        is_here = (named > 0) & (named < len(tables.v2p))
        is_here[is_here] = tables.v2p[named[is_here]] != -1
        count = len(np.unique(named[is_here]))
        yield _set(sample, tokens=Guarded(tokens), page_count=count, borrowed=True)


def _set(
    sample: Sample,
    tokens: Guarded | None = None,
    page_count: int | None = None,
    borrowed: bool = False,
    holders: Guarded | None = None,
    stopped: bool = False,
) -> Case:
    tables = sample.tables
    count = sample.page_count if page_count is None else page_count
    arguments = (
        Guarded(tables.v2p), Guarded(tables.p2v), marks_of(tables),
        Guarded(sample.tokens) if tokens is None else tokens, sample.page_size, count,
        list_of(count), FIRST_AT, None if borrowed else list_of(count + 3), FIRST_AT + 3,
        blank_record(stopped), SERIAL, CALL_TAG, holders,
    )  # fmt: skip
    return Case(unbind_tokens, unbind_tokens_host, arguments)


def token_groups(count: int) -> Iterator[Case]:
    """Several calls of both dtypes, with tokens and page ids, some empty, that share pages."""
    sample = sample_of(count, 16, 15)
    cuts = [0, 0, count // 7, count // 2, count]
    for borrowed in (False, True):
        tokens = sample.tokens.copy()
        if borrowed:
            tokens[1::4] = -1
        named = tokens // 16
        whole = len(np.unique(named[named > 0]))
        segments: list[Any] = []
        for number, (start, end) in enumerate(pairwise(cuts)):
            dtype, stride = FORMS[number]
            by_page = number == 2
            ids = named[start:end] if by_page else tokens[start:end]
            segments.append(Segment(Guarded(ids, dtype, stride), 1 if by_page else 16))
        for page_count in (whole, whole + 2, whole - 1):
            yield _group(sample, segments, page_count, borrowed)
        yield _group(sample, segments, whole, borrowed, stopped=True)
    for bad in (-7, len(sample.tables.v2p) * 16):
        late = [*segments, Segment(Guarded([bad]), 16)]
        yield _group(sample, late, whole, True)
    yield _group(sample, segments, whole, True, holders=holders_of(sample.tables))


def _group(
    sample: Sample,
    segments: list[Any],
    page_count: int,
    borrowed: bool,
    stopped: bool = False,
    holders: Guarded | None = None,
) -> Case:
    tables, count = sample.tables, max(0, page_count)
    arguments = (
        Guarded(tables.v2p), Guarded(tables.p2v), marks_of(tables), segments, count,
        list_of(count), FIRST_AT, None if borrowed else list_of(count), FIRST_AT,
        blank_record(stopped), SERIAL, CALL_TAG, holders,
    )  # fmt: skip
    return Case(unbind_group, unbind_group_host, arguments)


def token_runs(count: int) -> Iterator[Case]:
    """``count`` pages, the last one cut short; a head that is none, held, unbound, disagreeing."""
    for page_size in page_sizes(count):
        tables = make_tables(count, 16)
        run = (tables.ids[:count, None] * page_size + np.arange(page_size)).reshape(-1)
        run = run[: len(run) - page_size // 2]
        for dtype, stride in FORMS:
            yield _run(tables, Guarded(run, dtype, stride), page_size, count)
    middle = (count // 2) * page_size
    held = int(tables.ids[count // 2])
    unbound = int(tables.free_ids[0]) * page_size
    for bad in (run[middle] + 1, 0, -1, len(tables.v2p) * page_size, unbound, 2**40):
        wrong = run.copy()
        wrong[middle] = bad
        yield _run(tables, Guarded(wrong), page_size, count)
    yield _run(tables, Guarded(run), page_size, count, holders_of(tables))
    yield _run(tables, Guarded(run), page_size, count, holders_of(tables, held))
    yield _run(tables, Guarded(run), page_size, count, stopped=True)
    wide = wide_page_size(tables)
    if count <= LANES:
        heads = tables.ids[:1] * wide
        yield _run(tables, Guarded(heads), wide, 1)
        p2v = tables.p2v.copy()
        p2v[tables.v2p[held]] = tables.ids[-1]
        yield _run(tables._replace(p2v=p2v), Guarded(run), page_size, count)


def _run(
    tables: Tables,
    tokens: Guarded,
    page_size: int,
    count: int,
    holders: Guarded | None = None,
    stopped: bool = False,
) -> Case:
    arguments = (
        Guarded(tables.v2p), Guarded(tables.p2v), tokens, page_size,
        list_of(count), FIRST_AT, list_of(count), FIRST_AT,
        blank_record(stopped), CALL_TAG, holders,
    )  # fmt: skip
    return Case(unbind_run, unbind_run_host, arguments)

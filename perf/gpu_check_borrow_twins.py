"""Kernels of pools that lend and borrow ids, and of zeroing, on the device against their twins."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from kvdefrag.kernels.bind import bind_host, unbind, unbind_host
from kvdefrag.kernels.borrow import bind_borrowed, bind_borrowed_host
from kvdefrag.kernels.launch import LANES, Words
from kvdefrag.kernels.zero import zero_pages, zero_pages_host

from .gpu_check_guarded import (
    CALL_TAG,
    FIRST_AT,
    FORMS,
    Case,
    Grant,
    Guarded,
    Tables,
    blank_record,
    check_cases,
    grant_of,
    list_of,
    make_tables,
)
from .gpu_check_report import Report
from .gpu_check_sizes import Sizes
from .gpu_check_token_twins import SERIAL, holders_of, marks_of

ZEROED_BYTES = 1 << 23
"""A buffer that is zeroed in part is about this large at most."""


def check_borrow_twins(device: torch.device, sizes: Sizes, report: Report) -> None:
    """Ids that get pages, frees beside holders, and zeros, at every count."""
    makers = (borrowed_binds, held_frees, released_ids)
    check_cases(device, sizes.id_counts, makers, report)
    check_cases(device, sizes.zeroed_counts, (zeroed_pages,), report)


def borrowed_binds(count: int) -> Iterator[Case]:
    """Every form of ids, up and down; one id refused of each kind, a page taken, a void page."""
    tables = make_tables(count, 31)
    asked = tables.free_ids[:count]
    for step in (1, -1):
        for dtype, stride in FORMS:
            yield _borrow(tables, asked, grant_of(tables, count, step), dtype, stride)
    lender = _lender(tables, asked)
    lender[asked[-1]] = -1
    yield _borrow(tables, asked, grant_of(tables, count), lender=lender)
    for bad in (0, -1, len(tables.v2p), 2**40, int(tables.ids[0])):
        wrong = asked.copy()
        wrong[count // 2] = bad
        lender = _lender(tables, asked)
        lender[tables.ids[0]] = 3
        yield _borrow(tables, wrong, grant_of(tables, count), lender=lender)
    if count > 1:
        grant = grant_of(tables, count)
        grant.holes[grant.take.head] = -1
        yield _borrow(tables, asked, grant)
    if 1 < count <= LANES:
        for page in (int(tables.pages[0]), 0, len(tables.p2v)):
            grant = grant_of(tables, count)
            grant.holes[grant.take.head] = page
            yield _borrow(tables, asked, grant)
    yield _borrow(tables, asked, grant_of(tables, count), stopped=True)


def _lender(tables: Tables, lent: Words) -> Words:
    v2p = np.full(len(tables.v2p), -1, np.int64)
    v2p[0] = 0
    v2p[lent] = 7
    return v2p


def _borrow(
    tables: Tables,
    asked: Words,
    grant: Grant,
    dtype: torch.dtype = torch.int64,
    stride: int = 1,
    lender: Words | None = None,
    stopped: bool = False,
) -> Case:
    ids = np.minimum(asked, 2**31 - 1) if dtype == torch.int32 else asked
    arguments = (
        Guarded(tables.v2p), Guarded(tables.p2v),
        Guarded(_lender(tables, asked) if lender is None else lender), marks_of(tables),
        Guarded(ids, dtype, stride), Guarded(grant.holes), blank_record(stopped), grant.take,
        SERIAL, CALL_TAG,
    )  # fmt: skip
    return Case(bind_borrowed, bind_borrowed_host, arguments)


def held_frees(count: int) -> Iterator[Case]:
    """Two pools that borrow: they hold none of the ids, or one in the middle."""
    tables = make_tables(count, 32)
    for held in (0, int(tables.ids[count // 2])):
        for dtype, stride in FORMS:
            yield _free(tables, Guarded(tables.ids[:count], dtype, stride), count, held, True)


def released_ids(count: int) -> Iterator[Case]:
    """Ids that stay another pool's, so that no list gets them; one refused of each kind."""
    tables = make_tables(count, 33)
    for dtype, stride in FORMS:
        for bad in (None, 0, -1, 2**30, int(tables.free_ids[-1])):
            ids = tables.ids[:count].copy()
            ids[count // 2] = ids[count // 2] if bad is None else bad
            yield _free(tables, Guarded(ids, dtype, stride), count)


def _free(tables: Tables, ids: Guarded, count: int, held: int = 0, is_lender: bool = False) -> Case:
    arguments = (
        Guarded(tables.v2p), Guarded(tables.p2v), ids, list_of(count), FIRST_AT,
        list_of(count) if is_lender else None, FIRST_AT, blank_record(), CALL_TAG,
        holders_of(tables, held) if is_lender else None,
    )  # fmt: skip
    return Case(unbind, unbind_host, arguments)


def zeroed_pages(count: int) -> Iterator[Case]:
    """Pages of every unit, some of which were skipped or are out of range; a stopped record."""
    for page_bytes in (1, 6, 12, 24, 656, 16384 + 8, 65536):
        tables = make_tables(count, 34)
        if page_bytes * len(tables.p2v) > ZEROED_BYTES:
            continue
        for step in (1, -1):
            grant = grant_of(tables, count, step)
            bound = _bound(tables, grant)
            yield _zero(bound, grant, page_bytes)
        yield _zero(bound, grant, page_bytes, stopped=True)
        if count > 1:
            # Skipped by the launch that binds, so that it has no owner.
            bound.p2v[grant.holes[grant.take.head]] = -1
            grant.holes[grant.take.newer] = -1
            yield _zero(bound, grant, page_bytes)


def _bound(tables: Tables, grant: Grant) -> Tables:
    """Tables after ``bind`` of that grant."""
    v2p, p2v = tables.v2p.copy(), tables.p2v.copy()
    record = np.zeros(16, np.int64)
    bind_host(v2p, p2v, grant.holes, grant.free_ids, record, grant.take, CALL_TAG)
    assert not record.any()
    return tables._replace(v2p=v2p, p2v=p2v)


def _zero(tables: Tables, grant: Grant, page_bytes: int, stopped: bool = False) -> Case:
    byte_count = len(tables.p2v) * page_bytes
    filled = np.random.default_rng(page_bytes).integers(1, 256, byte_count, np.uint8)
    arguments = (
        Guarded(filled, torch.uint8), page_bytes, Guarded(tables.v2p), Guarded(tables.p2v),
        Guarded(grant.holes), blank_record(stopped), grant.take,
    )  # fmt: skip
    return Case(zero_pages, zero_pages_host, arguments)

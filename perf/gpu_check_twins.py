"""Every table kernel on the device against its host twin: all words, guards included."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from kvdefrag.kernels.bind import bind, bind_host, unbind, unbind_host
from kvdefrag.kernels.gather import gather_virtual, gather_virtual_host
from kvdefrag.kernels.launch import LANES, Words
from kvdefrag.kernels.rebind import rebind, rebind_host
from kvdefrag.kernels.take import Take
from kvdefrag.kernels.translate import (
    translate,
    translate_host,
    translate_tokens,
    translate_tokens_host,
)

from .gpu_check_guarded import (
    CALL_TAG,
    FORMS,
    Case,
    Guarded,
    Tables,
    blank_record,
    check_cases,
    make_tables,
)
from .gpu_check_report import Report
from .gpu_check_sizes import Sizes


def check_twins(device: torch.device, sizes: Sizes, report: Report) -> None:
    """All table kernels at every count."""
    makers = (
        _gathers, _rebinds, _binds, _unbinds, _translations, _token_translations, _token_tables,
    )  # fmt: skip
    check_cases(device, sizes.id_counts, makers, report)


def _gathers(count: int) -> Iterator[Case]:
    """A good batch, and batches with one bad pair of each kind."""
    tables = make_tables(count, 1)
    middle = count // 2
    free, taken = int(tables.free_pages[-1]), int(tables.pages[-1])
    faults = [
        (None, None), (free, None), (0, None), (-1, None), (2**40, None),
        (None, taken), (None, 0), (None, -(2**33)), (None, len(tables.p2v)),
    ]  # fmt: skip
    for source, target in faults:
        sources, targets = tables.pages[:count].copy(), tables.free_pages[:count].copy()
        sources[middle] = sources[middle] if source is None else source
        targets[middle] = targets[middle] if target is None else target
        yield _gather(tables.v2p, tables, sources, targets)
    v2p = tables.v2p.copy()
    v2p[tables.ids[middle]] = free
    yield _gather(v2p, tables, tables.pages[:count], tables.free_pages[:count])


def _gather(v2p: Words, tables: Tables, sources: Words, targets: Words) -> Case:
    memory = (v2p, tables.p2v, sources, targets, np.full(len(sources) + 3, 7, np.int64))
    arguments = (*(Guarded(words) for words in memory), blank_record(), CALL_TAG)
    return Case(gather_virtual, gather_virtual_host, arguments)


def _rebinds(count: int) -> Iterator[Case]:
    tables = make_tables(count, 2)
    batch = (tables.pages[:count], tables.free_pages[:count], tables.ids[:count])
    memory = tuple(Guarded(words) for words in (tables.v2p, tables.p2v, *batch))
    for stopped in (False, True):
        yield Case(rebind, rebind_host, (*memory, blank_record(stopped)))


def _binds(count: int) -> Iterator[Case]:
    """From the lists and from a run, up and down; with a void, a page taken, a stopped record.

    A corrupt state stops programs of the same launch that start later, which is a matter of
    timing; so faults of that kind are compared within one program, here and in ``_unbinds``.
    """
    tables = make_tables(count, 3)
    listed, recycled = count // 2, count // 3
    head, newer = 2, listed - listed // 2
    first_id = len(tables.free_ids) + len(tables.ids) + 1
    for step, fault in ((1, None), (-1, None), (1, "void"), (1, "taken"), (1, "stopped")):
        first_page = first_id if step == 1 else len(tables.p2v) - 1
        holes = np.concatenate([[-7] * head, tables.free_pages[:listed], [-7] * 3])
        ids = np.concatenate([[-7] * 4, tables.free_ids[:recycled], [-7] * 3])
        if fault == "taken" and count > LANES:
            continue
        if fault == "void" and listed:
            holes[head] = -1
        if fault == "void" and recycled:
            ids[4 + recycled - 1] = -1
        if fault == "taken" and listed:
            holes[head] = tables.pages[0]
        take = Take(
            count, head, newer, head + newer, listed - newer, first_page, step,
            4, recycled, first_id,
        )  # fmt: skip
        memory = tuple(Guarded(words) for words in (tables.v2p, tables.p2v, holes, ids))
        record = blank_record(fault == "stopped")
        yield Case(bind, bind_host, (*memory, record, take, CALL_TAG))


def _unbinds(count: int) -> Iterator[Case]:
    """Every form of ids; one id refused, one pair of rows that disagree, a stopped record."""
    tables = make_tables(count, 4)
    middle = count // 2
    for dtype, stride in FORMS:
        for bad in (None, 0, -1, 2**30, int(tables.free_ids[-1])):
            ids = tables.ids[:count].copy()
            ids[middle] = ids[middle] if bad is None else bad
            yield _unbind(tables.p2v, tables, Guarded(ids, dtype, stride), count)
    good = Guarded(tables.ids[:count])
    if count <= LANES:
        p2v = tables.p2v.copy()
        p2v[tables.pages[middle]] = tables.ids[-1]
        yield _unbind(p2v, tables, good, count)
    yield _unbind(tables.p2v, tables, good, count, stopped=True)


def _unbind(p2v: Words, tables: Tables, ids: Guarded, count: int, stopped: bool = False) -> Case:
    lists = np.full(count + 9, 3, np.int64)
    arguments = (
        Guarded(tables.v2p), Guarded(p2v), ids, Guarded(lists), 4, Guarded(lists), 7,
        blank_record(stopped), CALL_TAG,
    )  # fmt: skip
    return Case(unbind, unbind_host, arguments)


def _some_ids(tables: Tables, count: int, limit: int) -> Words:
    """Bound, unbound, negative and out-of-range ids that fit 32 bits."""
    draw = np.random.default_rng(count)
    ids = draw.integers(-3, limit + 3, count)
    ids[::2] = tables.ids[draw.integers(0, len(tables.ids), len(ids[::2]))]
    return np.where(ids == limit, 2**31 - 1, ids)


def _translations(count: int) -> Iterator[Case]:
    tables = make_tables(count, 5)
    v2p = tables.v2p.copy()
    v2p[tables.ids[:2]] = len(tables.p2v), -5
    for dtype, stride in FORMS:
        ids = Guarded(_some_ids(tables, count, len(v2p)), dtype, stride)
        yield Case(translate, translate_host, (Guarded(v2p), ids, len(tables.p2v)))


def _token_translations(count: int) -> Iterator[Case]:
    """Page sizes with 32-bit and with 64-bit division; both dtypes and strides on both sides."""
    tables = make_tables(count, 6)
    num_pages = len(tables.p2v)
    for page_size in (1, 3, 16):
        for dtype, stride in FORMS:
            tokens = np.minimum(_some_ids(tables, count, len(tables.v2p)), 2**24) * page_size
            tokens += np.arange(count) % page_size
            for out_dtype, out_stride in FORMS:
                arguments = (
                    Guarded(tables.v2p), Guarded(tokens, dtype, stride),
                    Guarded(np.full(count, 5, np.int64), out_dtype, out_stride),
                    num_pages, page_size,
                )  # fmt: skip
                yield Case(translate_tokens, translate_tokens_host, arguments)
    wide = 2**31 // len(tables.v2p) + 1
    tokens = _some_ids(tables, count, len(tables.v2p)) * wide + np.arange(count) % wide
    arguments = (
        Guarded(tables.v2p), Guarded(tokens), Guarded(np.zeros(count, np.int64)), num_pages, wide,
    )  # fmt: skip
    yield Case(translate_tokens, translate_tokens_host, arguments)


def _token_tables(count: int) -> Iterator[Case]:
    """Rows of tokens into wider rows, as tall as they fit into ``count``."""
    tables = make_tables(count, 7)
    rows = 3 if count % 3 == 0 else 1
    tokens = _some_ids(tables, count, len(tables.v2p)) * 4 + np.arange(count) % 4
    for beyond in (0, 1, LANES + 1):
        for dtype in (torch.int64, torch.int32):
            wide = np.full(count + rows * beyond, 5, np.int64)
            arguments = (
                Guarded(tables.v2p), Guarded(np.minimum(tokens, 2**30), dtype, rows=rows),
                Guarded(wide, dtype, rows=rows), len(tables.p2v), 4,
            )  # fmt: skip
            yield Case(translate_tokens, translate_tokens_host, arguments)

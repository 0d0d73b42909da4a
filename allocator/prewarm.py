"""Compile and launch everything an arena can use, before the first request needs it."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

import torch

from kvdefrag.kernels.backend import Backend, Operand
from kvdefrag.kernels.record import CORRUPT, RECORD_WORDS
from kvdefrag.kernels.take import Take
from kvdefrag.kernels.token_group import Segment
from kvdefrag.kernels.translate import MAX_INT32

from .arguments import ID_DTYPES
from .band import Band


def stopped_record(backend: Backend, device: torch.device) -> Operand:
    """A fault record of its own, int64 [16], that already holds a corrupt state."""
    words = torch.zeros(RECORD_WORDS, dtype=torch.int64, device="cpu")
    words[CORRUPT.value] = 1
    return backend.operand(words.to(device))


def prewarm(
    backend: Backend, bands: Sequence[Band], buffer: torch.Tensor | None, device: torch.device
) -> float:
    """Launch every kernel on the real tables and buffer, with a record that is already stopped.

    A stopped record turns everything that binds, unbinds, zeroes, copies or rebinds into launches
    that change nothing; the others write to scratch. So what is compiled and loaded is exactly what
    serving will use, and no table, list or byte changes. Returns the seconds it took.
    """
    started = perf_counter()
    record = stopped_record(backend, device)
    staging = backend.staging(2 * RECORD_WORDS)
    backend.read_back([record, record], staging)
    backend.assign(record, backend.upload(staging, RECORD_WORDS)[:RECORD_WORDS])
    pages = torch.zeros(3, 1, dtype=torch.int64, device=device)
    sources, targets, virtual_ids = (backend.operand(row) for row in pages)
    for band in bands:
        table, holes, ids = band.table, band.holes.buffer, band.ids.buffer
        take = Take(1, 0, 0, 0, 0, band.geometry.origin, band.geometry.step, 0, 0, 1)
        if table.lender is None:
            _prewarm_growth(backend, band, record, take, device)
        else:
            _prewarm_borrowing(backend, band, record, take, device)
        _prewarm_frees(backend, band, record, device, _page_sizes(band, bands))
        if band.spec.zero_on_alloc and buffer is not None:
            place = (backend.operand(buffer), band.spec.page_bytes)
            backend.zero_pages(*place, table.v2p, table.p2v, holes, record, take)
        for dtype in ID_DTYPES:
            asked = backend.operand(torch.zeros(1, dtype=dtype, device=device))
            backend.unbind(table.v2p, table.p2v, asked, holes, 0, ids, 0, record, 0)
            backend.translate(table.v2p, asked, band.geometry.num_pages)
            for out_dtype in ID_DTYPES:
                if out_dtype is torch.int32 and not _fits_int32(band):
                    continue
                out = backend.operand(torch.zeros(1, dtype=out_dtype, device=device))
                backend.translate_tokens(
                    table.v2p, asked, out, band.geometry.num_pages, band.spec.page_size
                )
        backend.gather_virtual(table.v2p, table.p2v, sources, targets, virtual_ids, record, 0)
        batch = (table.v2p, table.p2v, sources, targets, virtual_ids, record)
        if band.spec.mover is not None:
            backend.rebind(*batch)
        elif buffer is not None:
            backend.move_pages(backend.operand(buffer), band.spec.page_bytes, *batch)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return perf_counter() - started


def _prewarm_growth(
    backend: Backend, band: Band, record: Operand, take: Take, device: torch.device
) -> None:
    """The calls that hand out ids of the pool's own."""
    table, page_size = band.table, band.spec.page_size
    pair = (table.v2p, table.p2v)
    lists = (band.holes.buffer, band.ids.buffer, record)
    backend.bind(*pair, *lists, take, 0)
    backend.bind_tokens(*pair, *lists, take, 1, page_size, 0)
    for dtype in ID_DTYPES:
        asked = backend.operand(torch.zeros(1, dtype=dtype, device=device))
        backend.decode(*pair, asked, page_size, *lists, take, 0)
        backend.extend(*pair, asked, asked, asked, 1, page_size, *lists, take, 0)


def _prewarm_borrowing(
    backend: Backend, band: Band, record: Operand, take: Take, device: torch.device
) -> None:
    """The call that gives pages to ids of another pool."""
    table = band.table
    assert table.lender is not None
    tables = (table.v2p, table.p2v, table.lender.v2p, table.marks)
    for dtype in ID_DTYPES:
        asked = backend.operand(torch.zeros(1, dtype=dtype, device=device))
        backend.bind_borrowed(*tables, asked, band.holes.buffer, record, take, 1, 0)


def _page_sizes(band: Band, bands: Sequence[Band]) -> set[int]:
    """Tokens of a page in what may be freed: 1 for page ids, and a cascade counts as its lender."""
    named = (band.spec.name, band.spec.ids_from)
    return {1, *(each.spec.page_size for each in bands if each.spec.name in named)}


def _prewarm_frees(
    backend: Backend, band: Band, record: Operand, device: torch.device, page_sizes: set[int]
) -> None:
    """The calls that take tokens of pages of ``page_sizes``, alone and in groups."""
    table, page_size = band.table, band.spec.page_size
    pair = (table.v2p, table.p2v)
    slots = (band.holes.buffer, 0, band.ids.buffer, 0, record)
    for dtype in ID_DTYPES:
        asked = backend.operand(torch.zeros(1, dtype=dtype, device=device))
        if table.lender is None:
            backend.unbind_run(*pair, asked, page_size, *slots, 0)
        for tokens in page_sizes:
            backend.unbind_tokens(*pair, table.marks, asked, tokens, 1, *slots, 1, 0)
            segments = [Segment(asked, tokens)]
            backend.unbind_group(*pair, table.marks, segments, 1, *slots, 1, 0)


def _fits_int32(band: Band) -> bool:
    return band.geometry.num_pages * band.spec.page_size <= MAX_INT32

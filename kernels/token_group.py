"""unbind_group: the pages of several calls come back in one launch, each once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import triton.language as tl

from .distinct import TokenPages, pages_of_host, unbind_set_host
from .launch import Words, jit, launch, require_ids
from .marks import require_marks
from .record import _stopped, is_stopped_host
from .slots import freed_slots_host, holder_rows, require_free
from .token_free import (
    FREE_NUMBERS,
    FREE_POINTERS,
    SET_LANES,
    SET_WARPS,
    _conclude,
    _mark,
    _settle,
)
from .translate import MAX_INT32

SEGMENT_WORDS = 6
"""Of a segment on the device: address, count, stride, page size, 1 for int32 ids, 1 if strict."""


BORROWED_LANES = SET_LANES // 2
"""Tokens of one step where the ids are borrowed: for more the registers do not suffice."""


class Segment(NamedTuple):
    """Token ids of one call of a group, int32 or int64 [tokens], of ``page_size`` tokens a page.

    ``is_strict``: a gap among borrowed ids is refused.
    """

    token_ids: Any
    page_size: int
    is_strict: bool = False


@jit()
def _segment_tokens(segment, index, live):
    """Ids of one segment, of either dtype."""
    address = tl.load(segment)
    stride = tl.load(segment + 2)
    narrow = live & (index * 0 + tl.load(segment + 4) == 1)
    at = tl.where(live, index, 0) * stride
    ids32 = tl.load(address.to(tl.pointer_type(tl.int32)) + at, mask=narrow, other=0)
    ids64 = tl.load(address.to(tl.pointer_type(tl.int64)) + at, mask=live & ~narrow, other=0)
    return ids32.to(tl.int64) + ids64


@jit(
    do_not_specialize=["segment_count", "serial", *FREE_NUMBERS],
    do_not_specialize_on_alignment=["marks", "segments", *FREE_POINTERS],
)
def _unbind_group_kernel(
    v2p, p2v, holders, marks, segments, holes, free_ids, record,
    segment_count, page_count, holder_count, holes_end, free_ids_end,
    num_pages, num_ids, serial, call_tag,
    WIDE: tl.constexpr, BORROWED: tl.constexpr, SEGMENT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    if _stopped(record) != 0:
        return
    lane = tl.arange(0, BLOCK).to(tl.int64)
    before = segment_count * 0
    number = segment_count * 0
    while number < segment_count:
        segment = segments + number * SEGMENT
        token_count = tl.load(segment + 1).to(tl.int32)
        page_size = tl.load(segment + 3).to(tl.int32)
        start = token_count * 0
        while start < token_count:
            live = start + lane < token_count
            token = _segment_tokens(segment, start + lane, live)
            _mark(marks, token, live, before + start + lane, serial, num_ids, page_size, WIDE)
            start += BLOCK
        before += token_count
        number += 1
    tl.debug_barrier()
    before = segment_count * 0
    found = segment_count * 0
    number = segment_count * 0
    while number < segment_count:
        segment = segments + number * SEGMENT
        token_count = tl.load(segment + 1).to(tl.int32)
        page_size = tl.load(segment + 3).to(tl.int32)
        strict = tl.load(segment + 5).to(tl.int32)
        start = token_count * 0
        while start < token_count:
            live = start + lane < token_count
            token = _segment_tokens(segment, start + lane, live)
            found = _settle(
                v2p, p2v, holders, marks, holes, free_ids, record, token, live,
                before + start + lane, found, page_size, strict, page_count, holder_count,
                holes_end, free_ids_end, num_pages, num_ids, serial, call_tag, WIDE, BORROWED,
            )  # fmt: skip
            start += BLOCK
        before += token_count
        number += 1
    _conclude(
        holes, free_ids, record, found, page_count, holes_end, free_ids_end, call_tag,
        BORROWED, BLOCK,
    )  # fmt: skip


def unbind_group(
    v2p: torch.Tensor,
    p2v: torch.Tensor,
    marks: torch.Tensor,
    segments: Sequence[Segment],
    page_count: int,
    holes: torch.Tensor,
    holes_end: int,
    free_ids: torch.Tensor | None,
    free_ids_end: int,
    record: torch.Tensor,
    serial: int,
    call_tag: int,
    holders: torch.Tensor | None = None,
) -> None:
    """``unbind_tokens`` of all ``segments`` one after another: one upload and one launch.

    The index of a fault counts through all segments. Page ids are tokens of pages of one token.
    """
    token_count = sum(each.token_ids.numel() for each in segments)
    if token_count == 0:
        return
    require_free(v2p, p2v, page_count, holes, holes_end, free_ids, free_ids_end, record)
    require_marks(marks, v2p, token_count, serial)
    rows = []
    for ids, page_size, is_strict in segments:
        require_ids("token_ids", ids, v2p)
        narrow = int(ids.dtype == torch.int32)
        row = [ids.data_ptr(), ids.numel(), ids.stride(0), page_size, narrow, int(is_strict)]
        rows.append(row)
    pinned = torch.tensor(rows, dtype=torch.int64, device="cpu", pin_memory=v2p.is_cuda)
    described = pinned.view(-1).to(v2p.device, non_blocking=True)
    rows_held, holder_count = holder_rows(v2p, holders)
    is_wide = v2p.numel() * max(each.page_size for each in segments) > MAX_INT32
    is_borrowed = free_ids is None
    launch(
        _unbind_group_kernel,
        1,
        v2p, p2v, rows_held, marks, described, holes, holes if is_borrowed else free_ids, record,
        len(segments), page_count, holder_count, holes_end, free_ids_end,
        p2v.numel(), v2p.numel(), serial, call_tag,
        variant=(is_wide, is_borrowed),
        warps=SET_WARPS,
        WIDE=is_wide, BORROWED=is_borrowed, SEGMENT=SEGMENT_WORDS,
        BLOCK=BORROWED_LANES if is_borrowed else SET_LANES,
    )  # fmt: skip


def unbind_group_host(
    v2p: Words,
    p2v: Words,
    marks: Words,
    segments: Sequence[Segment],
    page_count: int,
    holes: Words,
    holes_end: int,
    free_ids: Words | None,
    free_ids_end: int,
    record: Words,
    serial: int,
    call_tag: int,
    holders: Words | None = None,
) -> None:
    """``unbind_group`` on host memory, which needs no marks."""
    if is_stopped_host(record) or not any(each.token_ids.size for each in segments):
        return
    parts = [pages_of_host(*each, v2p.size) for each in segments]
    sizes = [part.ids.size for part in parts]
    named = TokenPages(
        np.concatenate([part.ids for part in parts]),
        np.concatenate([part.in_range for part in parts]),
        np.repeat([part.page_size for part in parts], sizes),
        np.repeat([part.is_strict for part in parts], sizes),
    )
    slots = freed_slots_host(page_count, holes, holes_end, free_ids, free_ids_end)
    unbind_set_host(v2p, p2v, named, *slots, record, call_tag, holders, free_ids is None)

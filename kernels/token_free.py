"""unbind_tokens: pages come back by the ids of their tokens, in any order, each page once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
import triton.language as tl

from .distinct import pages_of_host, unbind_set_host
from .lanes import _unbind_lanes
from .launch import Words, jit, launch, require_ids
from .marks import _mark_of, require_marks
from .record import (
    COUNT_DIFFERS,
    ID_OUT_OF_RANGE,
    TOKEN_OUT_OF_RANGE,
    USAGE,
    _record_fault,
    _stopped,
    is_stopped_host,
)
from .slots import freed_slots_host, holder_rows, require_free
from .translate import MAX_INT32

SET_LANES = 2048
"""Tokens of one step of the set kernels: 4 a thread, which its registers can hold."""

SET_WARPS = 16
"""The set kernels run as one program, which gives the pages an order: a wide one."""


@jit()
def _page_of(token, live, num_ids, page_size, WIDE: tl.constexpr):
    """The virtual page of ``token``, and whether it is one of the pool's: the sink is not."""
    in_range = live & (token >= page_size) & (token < num_ids.to(tl.int64) * page_size)
    token = tl.where(in_range, token, 0)
    if WIDE:
        virtual = token // page_size
    else:
        # A 64-bit division is a function call on a GPU, a 32-bit one a few instructions.
        virtual = (token.to(tl.int32) // page_size).to(tl.int64)
    return virtual, in_range


@jit()
def _mark(marks, token, live, index, serial, num_ids, page_size, WIDE: tl.constexpr):
    virtual, in_range = _page_of(token, live, num_ids, page_size, WIDE)
    tl.atomic_max(marks + virtual, _mark_of(index, serial), mask=in_range)


@jit()
def _settle(
    v2p, p2v, holders, marks, holes, free_ids, record, token, live, index, found,
    page_size, strict, page_count, holder_count, holes_end, free_ids_end,
    num_pages, num_ids, serial, call_tag,
    WIDE: tl.constexpr, BORROWED: tl.constexpr,
):  # fmt: skip
    """Unbind the page of every token that is its page's first; returns the pages found so far.

    Where the ids are ``BORROWED``, gaps are passed over, unless ``strict`` is 1.
    """
    virtual, in_range = _page_of(token, live, num_ids, page_size, WIDE)
    outside = live & ~in_range
    code = page_size * 0 + TOKEN_OUT_OF_RANGE
    # Past the first level of cache: the marks were written by exchanges of this program.
    mark = tl.load(marks + virtual, mask=in_range, other=0, cache_modifier=".cg")
    first = in_range & (mark == _mark_of(index, serial))
    if BORROWED:
        home = tl.load(v2p + virtual, mask=in_range, other=-1)
        outside = outside & ((token < strict - 1) | (token >= page_size * (1 - strict)))
        # No row holds -2: where that is strict, an id without a page is asked for, and refused.
        first = first & (home != -1 - strict)
        code = tl.where(page_size == 1, ID_OUT_OF_RANGE, TOKEN_OUT_OF_RANGE)
    place = found + tl.cumsum(first.to(tl.int32), 0) - 1
    fits = first & (place < page_count)
    page, freed = _unbind_lanes(
        v2p, p2v, holders, record, virtual, fits | outside, index,
        tl.where(in_range, virtual, token), holder_count, num_pages, num_ids, call_tag, code,
    )  # fmt: skip
    place = tl.where(fits, place, 0)
    tl.store(holes + holes_end + place, page, mask=fits)
    if not BORROWED:
        tl.store(free_ids + free_ids_end + place, freed, mask=fits)
    return found + tl.sum(first.to(tl.int32), 0)


@jit()
def _conclude(
    holes, free_ids, record, found, page_count, holes_end, free_ids_end, call_tag,
    BORROWED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Slots that no page was found for hold -1; a count that differs is recorded."""
    lane = tl.arange(0, BLOCK)
    start = found + 0
    while start < page_count:
        place = (start + lane).to(tl.int64)
        beyond = place < page_count
        place = tl.where(beyond, place, 0)
        tl.store(holes + holes_end + place, place * 0 - 1, mask=beyond)
        if not BORROWED:
            tl.store(free_ids + free_ids_end + place, place * 0 - 1, mask=beyond)
        start += BLOCK
    only = tl.arange(0, 1).to(tl.int64)
    differs = only * 0 + found != page_count
    _record_fault(record, USAGE, differs, COUNT_DIFFERS, call_tag, only + found, -1, -1, -1)


FREE_NUMBERS = [
    "page_count", "holder_count", "holes_end", "free_ids_end", "num_pages", "num_ids", "call_tag",
]  # fmt: skip
FREE_POINTERS = ["v2p", "p2v", "holders", "holes", "free_ids", "record"]


@jit(
    do_not_specialize=["id_stride", "token_count", "page_size", "serial", *FREE_NUMBERS],
    do_not_specialize_on_alignment=["marks", "token_ids", *FREE_POINTERS],
)
def _unbind_tokens_kernel(
    v2p, p2v, holders, marks, token_ids, holes, free_ids, record,
    id_stride, token_count, page_size, page_count, holder_count, holes_end, free_ids_end,
    num_pages, num_ids, serial, call_tag,
    WIDE: tl.constexpr, BORROWED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    if _stopped(record) != 0:
        return
    lane = tl.arange(0, BLOCK).to(tl.int64)
    start = token_count * 0
    while start < token_count:
        index = start + lane
        live = index < token_count
        at = tl.where(live, index, 0) * id_stride
        token = tl.load(token_ids + at, mask=live, other=0).to(tl.int64)
        _mark(marks, token, live, index, serial, num_ids, page_size, WIDE)
        start += BLOCK
    tl.debug_barrier()
    found = token_count * 0
    start = token_count * 0
    while start < token_count:
        index = start + lane
        live = index < token_count
        at = tl.where(live, index, 0) * id_stride
        token = tl.load(token_ids + at, mask=live, other=0).to(tl.int64)
        found = _settle(
            v2p, p2v, holders, marks, holes, free_ids, record, token, live, index, found,
            page_size, 0, page_count, holder_count, holes_end, free_ids_end,
            num_pages, num_ids, serial, call_tag, WIDE, BORROWED,
        )  # fmt: skip
        start += BLOCK
    _conclude(
        holes, free_ids, record, found, page_count, holes_end, free_ids_end, call_tag,
        BORROWED, BLOCK,
    )  # fmt: skip


def unbind_tokens(
    v2p: torch.Tensor,
    p2v: torch.Tensor,
    marks: torch.Tensor,
    token_ids: torch.Tensor,
    page_size: int,
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
    """Take the pages of ``token_ids`` apart, each once, in one launch and list them as free.

    Token ``t`` is of virtual page ``t // page_size``. Read: ``token_ids`` int32 or int64 [tokens],
    any stride and order, any number of tokens of a page. Read and written: ``v2p`` int64 [virtual
    ids + 1] and ``p2v`` int64 [pages]: both rows of a page become -1; ``marks`` int64 [virtual ids
    + 1], zero at first. ``serial``: higher than in any earlier call with these marks, 1 to 2**31 -
    1. Written: ``page_count`` slots of both ``lists``, in the order of the pages' first tokens;
    ``record`` int64 [16]. ``holders``: as in ``unbind``.

    With ``free_ids`` None the ids are another pool's and stay its own, and the tokens may have
    gaps: those of page 0, -1, and those of an id that has no page here are passed over.
    A token out of range or of page 0 is refused, a page that is not bound leaves -1 in its slots:
    the record's slot ``USAGE`` keeps the first. So it does if ``page_count`` is not the number of
    pages, which is the fault's index: slots beyond them hold -1, pages beyond the slots stay bound.
    A page whose rows disagree is refused into slot ``CORRUPT``; nothing happens once that is taken.
    One program, so that the order is the same on every device. Raises as ``unbind``.
    """
    if (token_count := token_ids.numel()) == 0:
        return
    require_ids("token_ids", token_ids, v2p)
    require_free(v2p, p2v, page_count, holes, holes_end, free_ids, free_ids_end, record)
    require_marks(marks, v2p, token_count, serial)
    rows, holder_count = holder_rows(v2p, holders)
    is_wide = v2p.numel() * page_size > MAX_INT32
    is_borrowed = free_ids is None
    launch(
        _unbind_tokens_kernel, 1,
        v2p, p2v, rows, marks, token_ids, holes, holes if is_borrowed else free_ids, record,
        token_ids.stride(0), token_count, page_size, page_count, holder_count,
        holes_end, free_ids_end, p2v.numel(), v2p.numel(), serial, call_tag,
        variant=(token_ids.dtype, is_wide, is_borrowed),
        warps=SET_WARPS,
        WIDE=is_wide, BORROWED=is_borrowed, BLOCK=SET_LANES,
    )  # fmt: skip


def unbind_tokens_host(
    v2p: Words,
    p2v: Words,
    marks: Words,
    token_ids: npt.NDArray[np.integer],
    page_size: int,
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
    """``unbind_tokens`` on host memory, which needs no marks."""
    if token_ids.size and not is_stopped_host(record):
        slots = freed_slots_host(page_count, holes, holes_end, free_ids, free_ids_end)
        named = pages_of_host(token_ids, page_size, False, v2p.size)
        unbind_set_host(v2p, p2v, named, *slots, record, call_tag, holders, free_ids is None)

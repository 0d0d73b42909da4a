"""bind_tokens and decode: fresh pages are handed out as the ids of their tokens."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
import triton.language as tl

from .bind import bind_taken_host
from .lanes import _bind_lanes
from .launch import LANES, Words, jit, launch, require_ids
from .record import (
    COUNT_DIFFERS,
    ID_NOT_BOUND,
    TOKEN_OUT_OF_RANGE,
    USAGE,
    _record_fault,
    _stopped,
    is_stopped_host,
    record_count_host,
    record_fault_host,
)
from .take import Take, require_grow
from .translate import MAX_INT32

GROW_NUMBERS = [*Take._fields, "num_pages", "num_ids", "call_tag"]
GROW_POINTERS = ["v2p", "p2v", "out", "holes", "free_ids", "record"]


@jit(
    do_not_specialize=["token_count", "page_size", *GROW_NUMBERS],
    do_not_specialize_on_alignment=GROW_POINTERS,
)
def _bind_tokens_kernel(
    v2p, p2v, out, holes, free_ids, record,
    token_count, page_size,
    page_count, head, head_count, newer, newer_count, first_page, page_step,
    recycled, recycled_count, first_id, back_page, back_count, num_pages, num_ids, call_tag,
    BLOCK: tl.constexpr,
):  # fmt: skip
    lane = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = lane < page_count
    virtual = _bind_lanes(
        v2p, p2v, holes, free_ids, record, lane, live,
        page_count, head, head_count, newer, newer_count, first_page, page_step,
        recycled, recycled_count, first_id, back_page, back_count, num_pages, num_ids, call_tag,
    )  # fmt: skip
    offset = page_size * 0
    while offset < page_size:
        token = tl.where(virtual > 0, virtual * page_size + offset, 0)
        place = lane * page_size + offset
        wanted = live & (place < token_count)
        tl.store(out + tl.where(wanted, place, 0), token, mask=wanted)
        offset += 1


def bind_tokens(
    v2p: torch.Tensor,
    p2v: torch.Tensor,
    holes: torch.Tensor,
    free_ids: torch.Tensor,
    record: torch.Tensor,
    take: Take,
    token_count: int,
    page_size: int,
    call_tag: int,
) -> torch.Tensor:
    """``bind``, with the ids of the pages' tokens as the result: int64 [token_count].

    Token ``t`` of page ``v`` is ``v * page_size + t``. ``token_count`` of the ``take.page_count *
    page_size`` tokens are returned, the first ones; 0 for those of a refused page.
    """
    if token_count > take.page_count * page_size:
        raise ValueError(
            f"token_count: expected {take.page_count * page_size} at most, got {token_count}"
        )
    out = torch.empty(token_count, dtype=torch.int64, device=v2p.device)
    if take.page_count == 0:
        return out
    require_grow(v2p, v2p, p2v, holes, free_ids, record, take)
    launch(
        _bind_tokens_kernel,
        -(-take.page_count // LANES),
        v2p, p2v, out, holes, free_ids, record, token_count, page_size,
        *take, p2v.numel(), v2p.numel(), call_tag,
        BLOCK=LANES,
    )  # fmt: skip
    return out


def bind_tokens_host(
    v2p: Words,
    p2v: Words,
    holes: Words,
    free_ids: Words,
    record: Words,
    take: Take,
    token_count: int,
    page_size: int,
    call_tag: int,
) -> Words:
    """``bind_tokens`` on host memory."""
    virtual = bind_taken_host(v2p, p2v, holes, free_ids, record, take, take.page_count, call_tag)
    return tokens_of_host(virtual, page_size)[:token_count]


def tokens_of_host(virtual: Words, page_size: int) -> Words:
    """All tokens of pages, one page after another; 0 for those of page 0."""
    tokens = virtual[:, None] * page_size + np.arange(page_size)
    tokens[virtual == 0] = 0
    return tokens.reshape(-1)


@jit()
def _step(token, live, num_ids, page_size, WIDE: tl.constexpr):
    """Of a last token, -1 for none: is it good, does it end a page, and which page is it of."""
    good = live & (token >= -1) & (token < num_ids.to(tl.int64) * page_size)
    next_token = tl.where(good, token + 1, 0)
    if WIDE:
        page = next_token // page_size
    else:
        page = (next_token.to(tl.int32) // page_size).to(tl.int64)
    return good, good & (page * page_size == next_token), page


@jit(
    do_not_specialize=["id_stride", "batch_size", "page_size", *GROW_NUMBERS],
    do_not_specialize_on_alignment=["last_tokens", *GROW_POINTERS],
)
def _decode_kernel(
    v2p, p2v, last_tokens, out, holes, free_ids, record,
    id_stride, batch_size, page_size,
    page_count, head, head_count, newer, newer_count, first_page, page_step,
    recycled, recycled_count, first_id, back_page, back_count, num_pages, num_ids, call_tag,
    WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    lane = tl.arange(0, BLOCK).to(tl.int64)
    # Before this launch records anything. A word, for the interpreter widens a splat bool.
    stopped = _stopped(record)
    before = page_count * 0
    earlier = program * 0
    while earlier < program:
        index = earlier * BLOCK + lane
        token = tl.load(last_tokens + index * id_stride).to(tl.int64)
        _, ends_page, _ = _step(token, index >= 0, num_ids, page_size, WIDE)
        before += tl.sum(ends_page.to(tl.int32), 0)
        earlier += 1
    index = program.to(tl.int64) * BLOCK + lane
    live = index < batch_size
    at = tl.where(live, index, 0) * id_stride
    token = tl.load(last_tokens + at, mask=live, other=0).to(tl.int64)
    good, ends_page, page = _step(token, live, num_ids, page_size, WIDE)
    place = (before + tl.cumsum(ends_page.to(tl.int32), 0) - 1).to(tl.int64)
    # Looked up before anything is bound here, so that a page of this very call does not count.
    reused = good & ~ends_page
    home = tl.load(v2p + tl.where(reused, page, 0), mask=reused, other=-1)
    bound = reused & (page > 0) & (home > 0) & (stopped + lane * 0 == 0)
    virtual = _bind_lanes(
        v2p, p2v, holes, free_ids, record, place, ends_page & (place < page_count),
        page_count, head, head_count, newer, newer_count, first_page, page_step,
        recycled, recycled_count, first_id, back_page, back_count, num_pages, num_ids, call_tag,
    )  # fmt: skip
    fresh = virtual * page_size
    tl.store(out + index, tl.where(ends_page, fresh, tl.where(bound, token + 1, 0)), mask=live)

    code = tl.where(good, ID_NOT_BOUND, TOKEN_OUT_OF_RANGE)
    refused = live & ~ends_page & ~bound & (stopped + lane * 0 == 0)
    named = tl.where(good, page, token)
    _record_fault(record, USAGE, refused, code, call_tag, index, -1, -1, named)
    only = tl.arange(0, 1).to(tl.int64)
    found = only + before + tl.sum(ends_page.to(tl.int32), 0)
    differs = (found != page_count) & (only + (program + 1) * BLOCK >= batch_size)
    differs = differs & (stopped + only == 0)
    _record_fault(record, USAGE, differs, COUNT_DIFFERS, call_tag, found, -1, -1, -1)


def decode(
    v2p: torch.Tensor,
    p2v: torch.Tensor,
    last_tokens: torch.Tensor,
    page_size: int,
    holes: torch.Tensor,
    free_ids: torch.Tensor,
    record: torch.Tensor,
    take: Take,
    call_tag: int,
) -> torch.Tensor:
    """The next token id of every sequence, int64 [batch], in one launch.

    Read: ``last_tokens`` int32 or int64 [batch], any stride: the last token of each sequence, -1
    for one that has none. The next is in the same page, or the first of a fresh page where that
    ended; fresh pages go to the sequences in order. Otherwise as ``bind``.

    A last token out of range, or one whose page would go on but is not bound, is refused: its
    result is 0, the record's slot ``USAGE`` keeps the first. So it does if ``take.page_count`` is
    not the number of fresh pages, which is the fault's index: sequences beyond get 0, and pages
    beyond stay unbound. Once a corrupt state is recorded, nothing is bound and all results are 0.
    """
    batch_size = last_tokens.numel()
    out = torch.empty(batch_size, dtype=torch.int64, device=v2p.device)
    if batch_size == 0:
        return out
    require_ids("last_tokens", last_tokens, v2p)
    require_grow(v2p, v2p, p2v, holes, free_ids, record, take)
    is_wide = v2p.numel() * page_size > MAX_INT32
    launch(
        _decode_kernel,
        -(-batch_size // LANES),
        v2p, p2v, last_tokens, out, holes, free_ids, record,
        last_tokens.stride(0), batch_size, page_size,
        *take, p2v.numel(), v2p.numel(), call_tag,
        variant=(last_tokens.dtype, is_wide),
        WIDE=is_wide, BLOCK=LANES,
    )  # fmt: skip
    return out


def decode_host(
    v2p: Words,
    p2v: Words,
    last_tokens: npt.NDArray[np.integer],
    page_size: int,
    holes: Words,
    free_ids: Words,
    record: Words,
    take: Take,
    call_tag: int,
) -> Words:
    """``decode`` on host memory."""
    token = last_tokens.astype(np.int64)
    if token.size == 0 or is_stopped_host(record):
        return np.zeros(token.size, np.int64)
    good = (token >= -1) & (token < v2p.size * page_size)
    page = np.where(good, token + 1, 0) // page_size
    ends_page = good & ((token + 1) % page_size == 0)
    rows = np.flatnonzero(ends_page)
    reused = good & ~ends_page
    bound = reused & (page > 0) & (v2p[np.where(reused, page, 0)] > 0)
    count = min(rows.size, take.page_count)
    out = np.where(bound, token + 1, 0)
    virtual = bind_taken_host(v2p, p2v, holes, free_ids, record, take, count, call_tag)
    out[rows[:count]] = virtual * page_size
    record_fault_host(
        record, USAGE.value, ~ends_page & ~bound, call_tag,
        code=np.where(good, ID_NOT_BOUND.value, TOKEN_OUT_OF_RANGE.value),
        source=-1, target=-1, virtual=np.where(good, page, token),
    )  # fmt: skip
    if rows.size != take.page_count:
        record_count_host(record, rows.size, call_tag)
    return out

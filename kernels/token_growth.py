"""What the program of one sequence does when a batch grows: the parts of ``extend``'s kernel."""

from __future__ import annotations

import triton.language as tl

from .launch import jit
from .record import (
    COUNT_DIFFERS,
    ID_NOT_BOUND,
    LENGTHS_OUT_OF_ORDER,
    TOKEN_OUT_OF_PLACE,
    TOKEN_OUT_OF_RANGE,
    USAGE,
    _record_fault,
)


@jit()
def _growth(prefix, length, page_size):
    """Tokens that a sequence grows by, how many of them its last page takes, and fresh pages.

    All 0 where the lengths are out of order.
    """
    good = (prefix >= 0) & (prefix <= length) & (length <= 2147483647)
    first = tl.where(good, prefix, 0).to(tl.int32)
    end = tl.where(good, length, 0).to(tl.int32)
    held = first // page_size
    held += (first > held * page_size).to(tl.int32)
    needed = end // page_size
    needed += (end > needed * page_size).to(tl.int32)
    grown = (end - first).to(tl.int64)
    room = held.to(tl.int64) * page_size - first
    return grown, tl.minimum(grown, room), (needed - held).to(tl.int64), good


@jit()
def _earlier(
    prefix_lens, new_lens, prefix_stride, length_stride, sequence, page_size, BLOCK: tl.constexpr
):
    """Tokens and fresh pages of all sequences before ``sequence``."""
    tokens = (sequence * 0).to(tl.int64)
    pages = (sequence * 0).to(tl.int64)
    start = sequence * 0
    while start < sequence:
        index = start + tl.arange(0, BLOCK).to(tl.int64)
        live = index < sequence
        prefix = tl.load(prefix_lens + index * prefix_stride, mask=live, other=0).to(tl.int64)
        length = tl.load(new_lens + index * length_stride, mask=live, other=0).to(tl.int64)
        more_tokens, _, more_pages, _ = _growth(prefix, length, page_size)
        tokens += tl.sum(more_tokens, 0)
        pages += tl.sum(more_pages, 0)
        start += BLOCK
    return tokens, pages


@jit()
def _continue_page(
    v2p, last_token, out, record, row, prefix, tail, in_order, first_token, token_count, page_size,
    num_ids, call_tag, stopped,
    WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the ``tail`` tokens that the last page of a prefix takes; 0 if it is refused."""
    asked = tl.load(last_token).to(tl.int64)
    in_range = (asked >= page_size) & (asked < num_ids.to(tl.int64) * page_size)
    token = tl.where(in_range, asked, 0)
    if WIDE:
        page = token // page_size
    else:
        page = (token.to(tl.int32) // page_size).to(tl.int64)
    # Where in its page the prefix ends; below 2**31 wherever there is a tail.
    place = tl.where(tail > 0, prefix - 1, 0).to(tl.int32) % page_size
    in_place = in_range & (token - page * page_size == place)
    bound = in_place & (tl.load(v2p + page) > 0)
    # Words, since the interpreter widens a bool that is spread over lanes.
    reused = (bound & (stopped == 0)).to(tl.int64)
    lane = tl.arange(0, BLOCK).to(tl.int64)
    start = tail.to(tl.int32) * 0
    while start < tail.to(tl.int32):
        at = first_token + start + lane
        value = (token + 1 + start + lane) * reused
        wanted = (start + lane < tail) & (at < token_count)
        tl.store(out + tl.where(wanted, at, 0), value, mask=wanted)
        start += BLOCK
    code = tl.where(in_place, ID_NOT_BOUND, TOKEN_OUT_OF_PLACE)
    code = tl.where(in_range, code, TOKEN_OUT_OF_RANGE)
    code = tl.where(in_order, code, LENGTHS_OUT_OF_ORDER)
    named = tl.where(in_order, tl.where(in_place, page, asked), -1)
    bad = (((tail > 0) & (bound == 0)) | (in_order == 0)) & (stopped == 0)
    only = tl.arange(0, 1).to(tl.int64)
    bad = only + bad.to(tl.int64) == 1
    _record_fault(record, USAGE, bad, code, call_tag, only + row, -1, -1, named)


@jit()
def _conclude(
    out, record, tokens, pages, token_count, page_count, call_tag, stopped, BLOCK: tl.constexpr
):  # fmt: skip
    """What no sequence takes of ``out`` becomes 0; counts that differ are recorded."""
    lane = tl.arange(0, BLOCK).to(tl.int64)
    start = tl.minimum(tokens, token_count).to(tl.int32)
    while start < token_count:
        tl.store(out + start + lane, lane * 0, mask=start + lane < token_count)
        start += BLOCK
    differs = (pages != page_count) | (tokens != token_count)
    only = tl.arange(0, 1).to(tl.int64)
    differs = only + (differs & (stopped == 0)).to(tl.int64) == 1
    _record_fault(record, USAGE, differs, COUNT_DIFFERS, call_tag, only + pages, -1, -1, -1)

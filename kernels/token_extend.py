"""extend: a batch of sequences grows, each from a prefix to a new length."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
import triton.language as tl

from .bind import bind_taken_host
from .lanes import _bind_lanes
from .launch import LANES, Words, jit, launch, require_ids
from .record import (
    ID_NOT_BOUND,
    LENGTHS_OUT_OF_ORDER,
    TOKEN_OUT_OF_PLACE,
    TOKEN_OUT_OF_RANGE,
    USAGE,
    _stopped,
    is_stopped_host,
    record_count_host,
    record_fault_host,
)
from .take import Take, require_grow
from .token_grow import GROW_NUMBERS, GROW_POINTERS, tokens_of_host
from .token_growth import _conclude, _continue_page, _earlier, _growth
from .translate import MAX_INT32

PAGES_PER_SPLIT = 8
"""Programs are added to a batch of few sequences until each has about this many pages."""


@jit(
    do_not_specialize=[
        "prefix_stride", "length_stride", "token_stride", "batch_size", "split_count",
        "token_count", "page_size", *GROW_NUMBERS,
    ],
    do_not_specialize_on_alignment=["prefix_lens", "new_lens", "last_tokens", *GROW_POINTERS],
)  # fmt: skip
def _extend_kernel(
    v2p, p2v, prefix_lens, new_lens, last_tokens, out, holes, free_ids, record,
    prefix_stride, length_stride, token_stride, batch_size, split_count, token_count, page_size,
    page_count, head, head_count, newer, newer_count, first_page, page_step,
    recycled, recycled_count, first_id, back_page, back_count, num_pages, num_ids, call_tag,
    WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0) // split_count
    split = tl.program_id(0) - sequence * split_count
    stopped = _stopped(record)
    first_token, first_place = _earlier(
        prefix_lens, new_lens, prefix_stride, length_stride, sequence, page_size, BLOCK
    )
    row = sequence.to(tl.int64)
    prefix = tl.load(prefix_lens + row * prefix_stride).to(tl.int64)
    length = tl.load(new_lens + row * length_stride).to(tl.int64)
    grown, tail, pages, in_order = _growth(prefix, length, page_size)
    if split == 0:
        _continue_page(
            v2p, last_tokens + row * token_stride, out, record, row, prefix, tail, in_order,
            first_token, token_count, page_size, num_ids, call_tag, stopped, WIDE, BLOCK,
        )  # fmt: skip
        if sequence == batch_size - 1:
            _conclude(
                out, record, first_token + grown, first_place + pages, token_count, page_count,
                call_tag, stopped, BLOCK,
            )  # fmt: skip
    # Fresh pages; none for tokens that the caller has no room for.
    first_fresh = first_token + tail
    room = tl.maximum(token_count - first_fresh, 0)
    whole = room.to(tl.int32) // page_size
    whole += (room > whole * page_size).to(tl.int32)
    visited = tl.minimum(pages, whole).to(tl.int32)
    start = split * BLOCK
    while start < visited:
        ordinal = start + tl.arange(0, BLOCK).to(tl.int64)
        place = first_place + ordinal
        virtual = _bind_lanes(
            v2p, p2v, holes, free_ids, record, place, (ordinal < visited) & (place < page_count),
            page_count, head, head_count, newer, newer_count, first_page, page_step, recycled,
            recycled_count, first_id, back_page, back_count, num_pages, num_ids, call_tag,
        )  # fmt: skip
        offset = page_size * 0
        while offset < page_size:
            step = ordinal * page_size + offset
            value = tl.where(virtual > 0, virtual * page_size + offset, 0)
            mask = (ordinal < visited) & (step < grown - tail) & (step < room)
            tl.store(out + tl.where(mask, first_fresh + step, 0), value, mask=mask)
            offset += 1
        start += split_count * BLOCK


def extend(
    v2p: torch.Tensor,
    p2v: torch.Tensor,
    prefix_lens: torch.Tensor,
    new_lens: torch.Tensor,
    last_tokens: torch.Tensor,
    token_count: int,
    page_size: int,
    holes: torch.Tensor,
    free_ids: torch.Tensor,
    record: torch.Tensor,
    take: Take,
    call_tag: int,
) -> torch.Tensor:
    """The token ids that a batch grows by, int64 [token_count], in one launch.

    Sequence ``i`` grows from ``prefix_lens[i]`` tokens to ``new_lens[i]``; ``last_tokens[i]`` is
    the last token of its prefix, read only where that ends inside a page: the page goes on, then
    fresh pages follow. The result is those of sequence 0 in order, then those of sequence 1 and so
    on; fresh pages go to them in that order. Read: all three int32 or all int64 [batch], any
    stride. Otherwise as ``bind``.

    Refused, with 0 for the tokens concerned and the first kept in the record's slot ``USAGE``:
    lengths out of order (the sequence does not grow), a last token that is out of range, not where
    the prefix ends, or of a page that is not bound; so is a call whose lengths do not come to
    ``take.page_count`` pages (the fault's index is how many they come to) and ``token_count``
    tokens. Pages beyond either stay unbound. Once a corrupt state is recorded, nothing is bound and
    all results are 0. Raises ValueError for a wrong dtype, device or length.
    """
    out = torch.empty(token_count, dtype=torch.int64, device=v2p.device)
    batch_size = prefix_lens.numel()
    _require_batch(prefix_lens, new_lens, last_tokens, token_count, v2p)
    if batch_size == 0:
        return out
    require_grow(v2p, v2p, p2v, holes, free_ids, record, take)
    per_sequence = 1 + take.page_count // (PAGES_PER_SPLIT * batch_size)
    split_count = max(1, min(per_sequence, -(-take.page_count // LANES)))
    is_wide = v2p.numel() * page_size > MAX_INT32
    launch(
        _extend_kernel,
        batch_size * split_count,
        v2p, p2v, prefix_lens, new_lens, last_tokens, out, holes, free_ids, record,
        prefix_lens.stride(0), new_lens.stride(0), last_tokens.stride(0),
        batch_size, split_count, token_count, page_size,
        *take, p2v.numel(), v2p.numel(), call_tag,
        variant=(prefix_lens.dtype, is_wide),
        WIDE=is_wide, BLOCK=LANES,
    )  # fmt: skip
    return out


def _require_batch(
    prefix_lens: torch.Tensor,
    new_lens: torch.Tensor,
    last_tokens: torch.Tensor,
    token_count: int,
    beside: torch.Tensor,
) -> None:
    most = MAX_INT32 - LANES if prefix_lens.numel() else 0
    if token_count > most:
        raise ValueError(f"token_count: at most {most}, got {token_count}")
    batch = {"prefix_lens": prefix_lens, "new_lens": new_lens, "last_tokens": last_tokens}
    for name, ids in batch.items():
        require_ids(name, ids, beside)
        if ids.numel() != prefix_lens.numel() or ids.dtype != prefix_lens.dtype:
            raise ValueError(
                f"{name}: expected {prefix_lens.numel()} of {prefix_lens.dtype}, "
                f"got {ids.numel()} of {ids.dtype}"
            )


def extend_host(
    v2p: Words,
    p2v: Words,
    prefix_lens: npt.NDArray[np.integer],
    new_lens: npt.NDArray[np.integer],
    last_tokens: npt.NDArray[np.integer],
    token_count: int,
    page_size: int,
    holes: Words,
    free_ids: Words,
    record: Words,
    take: Take,
    call_tag: int,
) -> Words:
    """``extend`` on host memory."""
    out = np.zeros(token_count, np.int64)
    if prefix_lens.size == 0 or is_stopped_host(record):
        return out
    grown, tail, pages, prefix, in_order = _growth_host(prefix_lens, new_lens, page_size)
    first_token, first_place = np.cumsum(grown) - grown, np.cumsum(pages) - pages
    bound, code, named = _tails_host(v2p, prefix, last_tokens, page_size)
    code = np.where(in_order, code, LENGTHS_OUT_OF_ORDER.value)
    room = np.maximum(token_count - first_token - tail, 0)
    visited = np.minimum(pages, -(-room // page_size))
    count = int(np.clip(take.page_count - first_place, 0, visited).sum())
    virtual = bind_taken_host(v2p, p2v, holes, free_ids, record, take, count, call_tag)
    fresh = tokens_of_host(virtual, page_size)
    for row in np.flatnonzero(grown):
        start, middle = first_token[row], first_token[row] + tail[row]
        end = first_token[row] + grown[row]
        if bound[row]:
            part = out[start:middle]
            part[:] = int(last_tokens[row]) + 1 + np.arange(part.size)
        part = out[middle:end]
        source = fresh[first_place[row] * page_size :][: part.size]
        part[: source.size] = source
    record_fault_host(
        record, USAGE.value, (tail > 0) & ~bound | ~in_order, call_tag,
        code=code, source=-1, target=-1, virtual=np.where(in_order, named, -1),
    )  # fmt: skip
    if pages.sum() != take.page_count or grown.sum() != token_count:
        record_count_host(record, int(pages.sum()), call_tag)
    return out


def _growth_host(
    prefix_lens: npt.NDArray[np.integer], new_lens: npt.NDArray[np.integer], page_size: int
) -> tuple[Words, Words, Words, Words, npt.NDArray[np.bool_]]:
    """As ``_growth``, and the prefixes, for all sequences."""
    prefix, length = prefix_lens.astype(np.int64), new_lens.astype(np.int64)
    in_order = (prefix >= 0) & (prefix <= length) & (length <= MAX_INT32)
    prefix, length = np.where(in_order, prefix, 0), np.where(in_order, length, 0)
    held = -(-prefix // page_size)
    grown = length - prefix
    tail = np.minimum(grown, held * page_size - prefix)
    return grown, tail, -(-length // page_size) - held, prefix, in_order


def _tails_host(
    v2p: Words, prefix: Words, last_tokens: npt.NDArray[np.integer], page_size: int
) -> tuple[npt.NDArray[np.bool_], Words, Words]:
    """Which last tokens a page can go on from, else the code and the id of the fault."""
    last = last_tokens.astype(np.int64)
    in_range = (last >= page_size) & (last < v2p.size * page_size)
    in_place = in_range & (last % page_size == (prefix - 1) % page_size)
    page = np.where(in_place, last // page_size, 0)
    bound = in_place & (v2p[page] > 0)
    code = np.where(in_place, ID_NOT_BOUND.value, TOKEN_OUT_OF_PLACE.value)
    code = np.where(in_range, code, TOKEN_OUT_OF_RANGE.value)
    return bound, code, np.where(in_place, page, last)

"""zero_pages: pages just handed out read as zero."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
import triton.language as tl

from .bind import Take, require_grow, taken_host
from .copy import CHUNK_WORDS, WORDS, copy_form, require_buffer
from .lanes import _taken
from .launch import Words, jit, launch
from .record import _stopped, is_stopped_host


@jit(
    do_not_specialize=["page_words", "chunk_count", *Take._fields, "num_pages", "num_ids"],
    do_not_specialize_on_alignment=["buffer", "v2p", "p2v", "holes", "free_ids", "record"],
)
def _zero_kernel(
    buffer, v2p, p2v, holes, free_ids, record, page_words, chunk_count,
    page_count, head, head_count, newer, newer_count, first_page, page_step,
    recycled, recycled_count, first_id, back_page, back_count, num_pages, num_ids,
    WORD: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    if _stopped(record) != 0:
        return
    place = tl.program_id(0) // chunk_count
    chunk = tl.program_id(0) - place * chunk_count
    place = place.to(tl.int64)
    page, virtual = _taken(
        holes, free_ids, place, place >= 0,
        page_count, head, head_count, newer, newer_count, first_page, page_step,
        recycled, recycled_count, first_id, back_page, back_count,
    )  # fmt: skip
    # Only what this take has bound: the two rows of a pair that was skipped name another one.
    in_range = (page >= 1) & (page < num_pages) & (virtual >= 1) & (virtual < num_ids)
    page = tl.where(in_range, page, 0)
    owner = tl.load(p2v + page)
    home = tl.load(v2p + tl.where(in_range, virtual, 0))
    if in_range & (owner == virtual) & (home == page):
        base = buffer.to(tl.pointer_type(WORD))
        words = page_words
        if WIDE:
            base = tl.multiple_of(base, 16)
            words = page_words * 2
        offset = chunk * BLOCK + tl.arange(0, BLOCK)
        zero = tl.zeros((BLOCK,), WORD)
        tl.store(base + page * words + offset, zero, mask=offset < words)


def zero_pages(
    buffer: torch.Tensor,
    page_bytes: int,
    v2p: torch.Tensor,
    p2v: torch.Tensor,
    holes: torch.Tensor,
    free_ids: torch.Tensor,
    record: torch.Tensor,
    take: Take,
) -> None:
    """Fill the pages that a launch has just bound from ``take`` with zeros, in one launch.

    Read: tables and lists as ``bind`` took them, right behind it on the stream. Written: ``buffer``
    uint8 [bytes], at the pages of ``take`` that are bound to its ids, so no page of another owner
    and none that the launch left out. ``record`` int64 [16]: nothing is written once it holds a
    corrupt state. Raises ValueError for a wrong dtype, device or length.
    """
    if take.page_count == 0:
        return
    require_buffer(buffer)
    require_grow(buffer, v2p, p2v, holes, free_ids, record, take)
    form = copy_form(buffer, page_bytes)
    chunk_count = -(-form.page_units * form.words_per_unit // CHUNK_WORDS)
    launch(
        _zero_kernel,
        take.page_count * chunk_count,
        buffer, v2p, p2v, holes, free_ids, record, form.page_units, chunk_count,
        *take, p2v.numel(), v2p.numel(),
        variant=(form.unit_bytes,),
        WORD=WORDS[form.unit_bytes], WIDE=form.words_per_unit == 2, BLOCK=CHUNK_WORDS,
    )  # fmt: skip


def zero_pages_host(
    buffer: npt.NDArray[np.uint8],
    page_bytes: int,
    v2p: Words,
    p2v: Words,
    holes: Words,
    free_ids: Words,
    record: Words,
    take: Take,
) -> None:
    """``zero_pages`` on host memory."""
    if take.page_count == 0 or is_stopped_host(record):
        return
    pages, ids = taken_host(holes, free_ids, take)
    in_range = (pages >= 1) & (pages < p2v.size) & (ids >= 1) & (ids < v2p.size)
    pages, ids = pages[in_range], ids[in_range]
    bound = pages[(p2v[pages] == ids) & (v2p[ids] == pages)]
    buffer[: buffer.size // page_bytes * page_bytes].reshape(-1, page_bytes)[bound] = 0

"""zero_pages: pages just handed out read as zero."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
import triton.language as tl

from .copy import CHUNK_WORDS, WORDS, copy_form, require_buffer
from .lanes import _page_taken
from .launch import Words, jit, launch
from .record import _stopped, is_stopped_host
from .take import Take, require_take, taken_pages_host


@jit(
    do_not_specialize=["page_words", "chunk_count", *Take._fields, "num_pages", "num_ids"],
    do_not_specialize_on_alignment=["buffer", "v2p", "p2v", "holes", "record"],
)
def _zero_kernel(
    buffer, v2p, p2v, holes, record, page_words, chunk_count,
    page_count, head, head_count, newer, newer_count, first_page, page_step,
    recycled, recycled_count, first_id, back_page, back_count, num_pages, num_ids,
    WORD: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    if _stopped(record) != 0:
        return
    place = tl.program_id(0) // chunk_count
    chunk = tl.program_id(0) - place * chunk_count
    place = place.to(tl.int64)
    page = _page_taken(
        holes, place, place >= 0,
        page_count, head, head_count, newer, newer_count, first_page, page_step,
        back_page, back_count,
    )  # fmt: skip
    # A page that was skipped has no owner. One that had another was found, and has stopped this.
    in_range = (page >= 1) & (page < num_pages)
    page = tl.where(in_range, page, 0)
    virtual = tl.load(p2v + page)
    bound = in_range & (virtual >= 1) & (virtual < num_ids)
    home = tl.load(v2p + tl.where(bound, virtual, 0))
    if bound & (home == page):
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
    record: torch.Tensor,
    take: Take,
) -> None:
    """Fill the pages that a launch has just bound from ``take`` with zeros, in one launch.

    Read: tables and holes as ``bind`` took them, right behind it on the stream. Written: ``buffer``
    uint8 [bytes], at the pages of ``take`` that are bound now: all of them were free before that
    launch, which otherwise has recorded a corrupt state. ``record`` int64 [16]: nothing is written
    once it holds one. Raises ValueError for a wrong dtype, device or length.
    """
    if take.page_count == 0:
        return
    require_buffer(buffer)
    require_take(buffer, v2p, p2v, holes, record, take)
    form = copy_form(buffer, page_bytes)
    chunk_count = -(-form.page_units * form.words_per_unit // CHUNK_WORDS)
    launch(
        _zero_kernel,
        take.page_count * chunk_count,
        buffer, v2p, p2v, holes, record, form.page_units, chunk_count,
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
    record: Words,
    take: Take,
) -> None:
    """``zero_pages`` on host memory."""
    if take.page_count == 0 or is_stopped_host(record):
        return
    pages = taken_pages_host(holes, take)
    pages = pages[(pages >= 1) & (pages < p2v.size)]
    ids = p2v[pages]
    in_range = (ids >= 1) & (ids < v2p.size)
    bound = pages[in_range & (v2p[np.where(in_range, ids, 0)] == pages)]
    buffer[: buffer.size // page_bytes * page_bytes].reshape(-1, page_bytes)[bound] = 0

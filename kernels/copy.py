"""copy_pages: whole pages from place to place inside one byte buffer."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import triton.language as tl

from .launch import Words, jit, launch, require_words
from .record import RECORD_WORDS, _stopped, is_stopped_host

CHUNKED_FROM_BYTES = 16 * 1024
"""Pages of this size and more are copied in chunks, smaller ones as one flat run of units."""

CHUNK_WORDS = 2048
"""Words a program of the chunked form: 128 B a thread of 4 warps in 8-byte words, 8 loads deep."""

FLAT_UNITS = 512
"""Units a program of the flat form: 8 KiB in 16-byte units, 4 loads deep."""

MAX_UNITS = 2**31 - 1
"""Unit arithmetic is 32-bit: a 64-bit division would be a function call."""

WORD_DTYPES = {16: torch.int64, 8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}
"""Element type by unit width in bytes; a 16-byte unit is two int64 words."""

HOST_BATCH_BYTES = 16 << 20
"""The host twin stages at most about this much at a time."""


@jit(
    do_not_specialize=["page_units", "chunk_count"],
    do_not_specialize_on_alignment=["sources", "targets", "record"],
)
def _copy_chunked_kernel(
    buffer, sources, targets, record, page_units, chunk_count,
    WORDS_PER_UNIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    if _stopped(record) != 0:
        return
    program = tl.program_id(0)
    pair = program // chunk_count
    offset = (program - pair * chunk_count) * BLOCK + tl.arange(0, BLOCK)
    source = tl.load(sources + pair)
    target = tl.load(targets + pair)
    # The literal WORDS_PER_UNIT is what proves 16-byte alignment, whatever the page size.
    mask = offset < page_units * WORDS_PER_UNIT
    words = tl.load(buffer + source * page_units * WORDS_PER_UNIT + offset, mask=mask)
    tl.store(buffer + target * page_units * WORDS_PER_UNIT + offset, words, mask=mask)


@jit(
    do_not_specialize=["page_units", "unit_count"],
    do_not_specialize_on_alignment=["sources", "targets", "record"],
)
def _copy_flat_kernel(
    buffer, sources, targets, record, page_units, unit_count,
    WORDS_PER_UNIT: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    if _stopped(record) != 0:
        return
    # 64-bit start, 32-bit units: the last program may pass 2**31 before its mask cuts it off.
    unit = tl.program_id(0).to(tl.int64) * UNITS + tl.arange(0, UNITS)
    live = unit < unit_count
    unit = tl.where(live, unit, 0).to(tl.int32)
    pair = unit // page_units
    offset = (unit - pair * page_units) * WORDS_PER_UNIT
    source = tl.load(sources + pair, mask=live, other=0)
    target = tl.load(targets + pair, mask=live, other=0)
    word = tl.arange(0, WORDS_PER_UNIT)[None, :]
    source_word = (source * page_units * WORDS_PER_UNIT + offset)[:, None] + word
    target_word = (target * page_units * WORDS_PER_UNIT + offset)[:, None] + word
    words = tl.load(buffer + source_word, mask=live[:, None])
    tl.store(buffer + target_word, words, mask=live[:, None])


class CopyForm(NamedTuple):
    """How pages of one size are copied in one buffer.

    ``unit_bytes``: the widest access, 16 at most, that page size and address both allow.
    ``page_units``: such units a page. ``words_per_unit``: elements of ``WORD_DTYPES[unit_bytes]``.
    ``chunked``: large pages, a program a chunk; else a program a run of units.
    """

    unit_bytes: int
    page_units: int
    words_per_unit: int
    chunked: bool


def copy_form(buffer: torch.Tensor, page_bytes: int) -> CopyForm:
    """The form for pages of ``page_bytes`` in ``buffer``.

    Raises ValueError for a page that is empty, larger than the buffer or over 2**31 words.
    """
    if not 1 <= page_bytes <= buffer.numel():
        raise ValueError(f"page_bytes: expected 1 to {buffer.numel()}, got {page_bytes}")
    unit_bytes = math.gcd(page_bytes, buffer.data_ptr(), 16)
    words_per_unit = 2 if unit_bytes == 16 else 1
    page_units = page_bytes // unit_bytes
    if page_units * words_per_unit > MAX_UNITS - CHUNK_WORDS:
        raise ValueError(
            f"page_bytes: at most {MAX_UNITS - CHUNK_WORDS} words of "
            f"{unit_bytes // words_per_unit} bytes, got {page_bytes}"
        )
    return CopyForm(unit_bytes, page_units, words_per_unit, page_bytes >= CHUNKED_FROM_BYTES)


def copy_pages(
    buffer: torch.Tensor,
    sources: torch.Tensor,
    targets: torch.Tensor,
    page_bytes: int,
    record: torch.Tensor,
) -> None:
    """Copy whole pages inside ``buffer``: page ``sources[i]`` onto page ``targets[i]``.

    Read and written: ``buffer`` uint8 [bytes], contiguous, at any address; page ``p`` is bytes
    ``[p * page_bytes, (p + 1) * page_bytes)``. Read: ``sources``, ``targets`` int64 [moves],
    validated before (``gather_virtual``) and disjoint; ``record`` int64 [16]: nothing is copied
    once it holds a corrupt state. ``page_bytes`` is 1 or more. Bytes are moved as integers, so NaN
    payloads keep their bits.

    One launch below 2**31 units (of 16 bytes where size and address allow); small pages above that
    take one launch per 2**31 units. Raises ValueError for a wrong dtype, device or length, for a
    page over 2**31 words, and where chunks times moves exceed one grid.
    """
    if sources.numel() == 0:
        return
    if buffer.dtype != torch.uint8 or buffer.dim() != 1 or not buffer.is_contiguous():
        raise ValueError(
            f"buffer: expected a contiguous 1-D uint8 tensor, "
            f"got {buffer.dtype} {tuple(buffer.shape)}"
        )
    require_words("sources", sources, 0, buffer)
    require_words("targets", targets, sources.numel(), buffer)
    require_words("record", record, RECORD_WORDS, buffer)
    form = copy_form(buffer, page_bytes)
    whole_units = buffer.numel() // form.unit_bytes * form.unit_bytes
    words = buffer[:whole_units].view(WORD_DTYPES[form.unit_bytes])
    if form.chunked:
        _launch_chunked(words, sources, targets, record, form)
    else:
        _launch_flat(words, sources, targets, record, form)


def _launch_chunked(
    words: torch.Tensor,
    sources: torch.Tensor,
    targets: torch.Tensor,
    record: torch.Tensor,
    form: CopyForm,
) -> None:
    chunk_count = -(-form.page_units * form.words_per_unit // CHUNK_WORDS)
    launch(
        _copy_chunked_kernel,
        sources.numel() * chunk_count,
        words, sources, targets, record, form.page_units, chunk_count,
        WORDS_PER_UNIT=form.words_per_unit, BLOCK=CHUNK_WORDS,
    )  # fmt: skip


def _launch_flat(
    words: torch.Tensor,
    sources: torch.Tensor,
    targets: torch.Tensor,
    record: torch.Tensor,
    form: CopyForm,
) -> None:
    pairs_per_launch = MAX_UNITS // form.page_units
    for start in range(0, sources.numel(), pairs_per_launch):
        part = slice(start, start + pairs_per_launch)
        unit_count = sources[part].numel() * form.page_units
        launch(
            _copy_flat_kernel,
            -(-unit_count // FLAT_UNITS),
            words, sources[part], targets[part], record, form.page_units, unit_count,
            WORDS_PER_UNIT=form.words_per_unit, UNITS=FLAT_UNITS,
        )  # fmt: skip


def copy_pages_host(
    buffer: npt.NDArray[np.uint8],
    sources: Words,
    targets: Words,
    page_bytes: int,
    record: Words,
) -> None:
    """``copy_pages`` on host memory."""
    if is_stopped_host(record):
        return
    pages = buffer[: buffer.size // page_bytes * page_bytes].view(f"V{page_bytes}")
    pages_per_batch = max(1, HOST_BATCH_BYTES // page_bytes)
    for start in range(0, sources.size, pages_per_batch):
        part = slice(start, start + pages_per_batch)
        pages[targets[part]] = pages[sources[part]]

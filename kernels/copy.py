"""copy_pages: whole pages from place to place inside one byte buffer."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import triton.language as tl

from .launch import LANES, Words, jit, launch, require_pairs, require_words
from .rebind import _rebind_share, rebind_host
from .record import RECORD_WORDS, _stopped, is_stopped_host

CHUNKED_FROM_BYTES = 16 * 1024
"""Pages of this size and more are copied in chunks, smaller ones as one flat run of units."""

CHUNK_WORDS = 2048
"""Words a program of the chunked form: 128 B a thread of 4 warps in 8-byte words, 8 loads deep."""

FLAT_UNITS = 512
"""Units a program of the flat form: 8 KiB in 16-byte units, 4 loads deep."""

MAX_UNITS = 2**31 - 1
"""Unit arithmetic is 32-bit: a 64-bit division would be a function call."""

WORDS = {16: tl.int64, 8: tl.int64, 4: tl.int32, 2: tl.int16, 1: tl.uint8}
"""Element type by unit width in bytes; a 16-byte unit is two int64 words."""

HOST_BATCH_BYTES = 16 << 20
"""The host twin stages at most about this much at a time."""

_POINTERS = ["buffer", "sources", "targets", "record", "v2p", "p2v", "virtual_ids"]


@jit(
    do_not_specialize=["move_count", "page_units", "chunk_count"],
    do_not_specialize_on_alignment=_POINTERS,
)
def _copy_chunked_kernel(
    buffer, sources, targets, record, v2p, p2v, virtual_ids, move_count, page_units, chunk_count,
    REBIND: tl.constexpr, WORD: tl.constexpr, WORDS_PER_UNIT: tl.constexpr,
    BLOCK: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    if _stopped(record) != 0:
        return
    if REBIND:
        _rebind_share(v2p, p2v, sources, targets, virtual_ids, move_count, LANES)
    base = buffer.to(tl.pointer_type(WORD))
    if WORDS_PER_UNIT == 2:
        base = tl.multiple_of(base, 16)
    program = tl.program_id(0)
    pair = program // chunk_count
    offset = (program - pair * chunk_count) * BLOCK + tl.arange(0, BLOCK)
    source = tl.load(sources + pair)
    target = tl.load(targets + pair)
    # The literal WORDS_PER_UNIT is what proves 16-byte alignment, whatever the page size.
    mask = offset < page_units * WORDS_PER_UNIT
    words = tl.load(base + source * page_units * WORDS_PER_UNIT + offset, mask=mask)
    tl.store(base + target * page_units * WORDS_PER_UNIT + offset, words, mask=mask)


@jit(
    do_not_specialize=["move_count", "page_units", "unit_count"],
    do_not_specialize_on_alignment=_POINTERS,
)
def _copy_flat_kernel(
    buffer, sources, targets, record, v2p, p2v, virtual_ids, move_count, page_units, unit_count,
    REBIND: tl.constexpr, WORD: tl.constexpr, WORDS_PER_UNIT: tl.constexpr,
    UNITS: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    if _stopped(record) != 0:
        return
    if REBIND:
        _rebind_share(v2p, p2v, sources, targets, virtual_ids, move_count, LANES)
    base = buffer.to(tl.pointer_type(WORD))
    if WORDS_PER_UNIT == 2:
        base = tl.multiple_of(base, 16)
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
    words = tl.load(base + source_word, mask=live[:, None])
    tl.store(base + target_word, words, mask=live[:, None])


class CopyForm(NamedTuple):
    """How pages of one size are copied in one buffer.

    ``unit_bytes``: the widest access, 16 at most, that page size and address both allow.
    ``page_units``: such units a page. ``words_per_unit``: elements of ``WORDS[unit_bytes]``.
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


def require_buffer(buffer: torch.Tensor) -> None:
    """Raise ValueError unless ``buffer`` is contiguous uint8 [bytes]."""
    if buffer.dtype != torch.uint8 or buffer.dim() != 1 or not buffer.is_contiguous():
        raise ValueError(
            f"buffer: expected a contiguous 1-D uint8 tensor, "
            f"got {buffer.dtype} {tuple(buffer.shape)}"
        )


class Rebinding(NamedTuple):
    """The tables that follow a copy in the same launch, as ``rebind`` takes them."""

    v2p: Any
    p2v: Any
    virtual_ids: Any


def copy_pages(
    buffer: torch.Tensor,
    sources: torch.Tensor,
    targets: torch.Tensor,
    page_bytes: int,
    record: torch.Tensor,
    rebinding: Rebinding | None = None,
) -> None:
    """Copy whole pages inside ``buffer``: page ``sources[i]`` onto page ``targets[i]``.

    Read and written: ``buffer`` uint8 [bytes], contiguous, at any address; page ``p`` is bytes
    ``[p * page_bytes, (p + 1) * page_bytes)``. Read: ``sources``, ``targets`` int64 [moves],
    validated before (``gather_virtual``) and disjoint; ``record`` int64 [16]: nothing is copied
    once it holds a corrupt state. ``page_bytes`` is 1 or more. With ``rebinding`` the same launch
    also does what ``rebind`` does to its tables; no program reads what another one writes.

    One launch below 2**31 units (of 16 bytes where size and address allow); small pages above that
    take one launch per 2**31 units. Raises ValueError for a wrong dtype, device or length, for a
    page over 2**31 words, and where chunks times moves exceed one grid.
    """
    move_count = sources.numel()
    if move_count == 0:
        return
    require_buffer(buffer)
    require_pairs(sources, targets, buffer)
    require_words("record", record, RECORD_WORDS, buffer)
    if rebinding is not None:
        require_words("v2p", rebinding.v2p, 1, buffer)
        require_words("p2v", rebinding.p2v, 1, buffer)
        require_words("virtual_ids", rebinding.virtual_ids, move_count, buffer)
    form = copy_form(buffer, page_bytes)
    if form.chunked:
        _launch_chunked(buffer, sources, targets, record, form, rebinding)
    else:
        _launch_flat(buffer, sources, targets, record, form, rebinding)


def _launch_chunked(
    buffer: torch.Tensor,
    sources: torch.Tensor,
    targets: torch.Tensor,
    record: torch.Tensor,
    form: CopyForm,
    rebinding: Rebinding | None,
) -> None:
    chunk_count = -(-form.page_units * form.words_per_unit // CHUNK_WORDS)
    # Pointers that no program follows stand in where nothing is rebound.
    v2p, p2v, virtual_ids = rebinding or (record, record, sources)
    launch(
        _copy_chunked_kernel,
        sources.numel() * chunk_count,
        buffer, sources, targets, record, v2p, p2v, virtual_ids,
        sources.numel(), form.page_units, chunk_count,
        variant=(form.unit_bytes, rebinding is None),
        REBIND=rebinding is not None, WORD=WORDS[form.unit_bytes],
        WORDS_PER_UNIT=form.words_per_unit,
        BLOCK=CHUNK_WORDS, LANES=LANES,
    )  # fmt: skip


def _launch_flat(
    buffer: torch.Tensor,
    sources: torch.Tensor,
    targets: torch.Tensor,
    record: torch.Tensor,
    form: CopyForm,
    rebinding: Rebinding | None,
) -> None:
    moves_per_launch = MAX_UNITS // form.page_units
    for start in range(0, sources.numel(), moves_per_launch):
        part = slice(start, start + moves_per_launch)
        move_count = sources[part].numel()
        v2p, p2v, virtual_ids = rebinding or (record, record, sources)
        launch(
            _copy_flat_kernel,
            -(-move_count * form.page_units // FLAT_UNITS),
            buffer, sources[part], targets[part], record, v2p, p2v, virtual_ids[part],
            move_count, form.page_units, move_count * form.page_units,
            variant=(form.unit_bytes, rebinding is None),
            REBIND=rebinding is not None, WORD=WORDS[form.unit_bytes],
        WORDS_PER_UNIT=form.words_per_unit,
            UNITS=FLAT_UNITS, LANES=LANES,
        )  # fmt: skip


def copy_pages_host(
    buffer: npt.NDArray[np.uint8],
    sources: Words,
    targets: Words,
    page_bytes: int,
    record: Words,
    rebinding: Rebinding | None = None,
) -> None:
    """``copy_pages`` on host memory."""
    if is_stopped_host(record):
        return
    if rebinding is not None:
        v2p, p2v, virtual_ids = rebinding
        rebind_host(v2p, p2v, sources, targets, virtual_ids, record)
    pages = buffer[: buffer.size // page_bytes * page_bytes].view(f"V{page_bytes}")
    pages_per_batch = max(1, HOST_BATCH_BYTES // page_bytes)
    for start in range(0, sources.size, pages_per_batch):
        part = slice(start, start + pages_per_batch)
        pages[targets[part]] = pages[sources[part]]

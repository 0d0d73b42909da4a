"""copy_pages_layered: the pages of an engine that keeps one K and one V tensor per layer."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import triton.language as tl

from .copy import CHUNK_WORDS, CHUNKED_FROM_BYTES, FLAT_UNITS, MAX_UNITS, WORDS
from .launch import Words, jit, launch, require_pairs, require_words
from .record import RECORD_WORDS, _stopped, is_stopped_host

_POINTERS = ["addresses", "page_units", "stride_units", "sources", "targets", "record"]


class Layers:
    """A pointer table over per-layer buffers, made once, when the engine's tensors exist.

    ``buffers``: tensors of any dtype on one device, each [pages, ...] with contiguous pages; page
    bytes and strides may differ between them. Page ``p`` of layer ``i`` is ``buffers[i][p]``. The
    tensors are kept alive, since the table holds their addresses.

    Raises ValueError naming the buffer for a wrong device, layout or page count.
    """

    __slots__ = (
        "addresses", "buffers", "max_page_units", "num_pages", "page_bytes", "page_units",
        "stride_units", "unit_bytes",
    )  # fmt: skip

    def __init__(self, buffers: Sequence[torch.Tensor]) -> None:
        if not buffers:
            raise ValueError("buffers: expected at least one tensor, got none")
        for index, buffer in enumerate(buffers):
            _check_buffer(f"buffers[{index}]", buffer, buffers[0])
        self.buffers = list(buffers)
        self.num_pages = buffers[0].shape[0]
        self.page_bytes = [b[0].numel() * b.element_size() for b in buffers]
        strides = [b.stride(0) * b.element_size() for b in buffers]
        addresses = [b.data_ptr() for b in buffers]
        self.unit_bytes = math.gcd(*addresses, *self.page_bytes, *strides, 16)
        units = [size // self.unit_bytes for size in self.page_bytes]
        self.max_page_units = max(units)
        words_per_unit = 2 if self.unit_bytes == 16 else 1
        # Offsets in a page are 32-bit: past that the last chunk would wrap to before the page.
        if self.max_page_units * words_per_unit > MAX_UNITS - CHUNK_WORDS:
            raise ValueError(
                f"buffers: at most {MAX_UNITS - CHUNK_WORDS} words of "
                f"{self.unit_bytes // words_per_unit} bytes a page, got {max(self.page_bytes)}"
            )
        device = buffers[0].device
        self.addresses = torch.tensor(addresses, dtype=torch.int64, device=device)
        self.page_units = torch.tensor(units, dtype=torch.int64, device=device)
        self.stride_units = torch.tensor(
            [stride // self.unit_bytes for stride in strides], dtype=torch.int64, device=device
        )


def _check_buffer(name: str, buffer: torch.Tensor, first: torch.Tensor) -> None:
    if buffer.dim() < 1 or buffer.numel() == 0:
        raise ValueError(
            f"{name}: expected [pages, ...] of one byte or more, got {list(buffer.shape)}"
        )
    if buffer.shape[0] != first.shape[0]:
        raise ValueError(f"{name}: expected [{first.shape[0]}, ...], got {list(buffer.shape)}")
    if buffer.device != first.device:
        raise ValueError(f"{name}: expected device {first.device}, got {buffer.device}")
    if not buffer[0].is_contiguous() or buffer.stride(0) < buffer[0].numel():
        raise ValueError(f"{name}: expected contiguous pages, got strides {buffer.stride()}")


@jit(
    do_not_specialize=["buffer_count", "chunk_count"],
    do_not_specialize_on_alignment=_POINTERS,
)
def _copy_layered_chunked_kernel(
    addresses, page_units, stride_units, sources, targets, record, buffer_count, chunk_count,
    WORD: tl.constexpr, WORDS_PER_UNIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    if _stopped(record) != 0:
        return
    program = tl.program_id(0)
    row = program // chunk_count
    pair = row // buffer_count
    layer = row - pair * buffer_count
    offset = (program - row * chunk_count) * BLOCK + tl.arange(0, BLOCK)
    base = tl.load(addresses + layer).to(tl.pointer_type(WORD))
    if WORDS_PER_UNIT == 2:
        base = tl.multiple_of(base, 16)
    stride = tl.load(stride_units + layer)
    source = tl.load(sources + pair) * stride * WORDS_PER_UNIT
    target = tl.load(targets + pair) * stride * WORDS_PER_UNIT
    mask = offset < tl.load(page_units + layer) * WORDS_PER_UNIT
    words = tl.load(base + source + offset, mask=mask)
    tl.store(base + target + offset, words, mask=mask)


@jit(
    do_not_specialize=["buffer_count", "max_units", "unit_count"],
    do_not_specialize_on_alignment=_POINTERS,
)
def _copy_layered_flat_kernel(
    addresses, page_units, stride_units, sources, targets, record,
    buffer_count, max_units, unit_count,
    WORD: tl.constexpr, WORDS_PER_UNIT: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    if _stopped(record) != 0:
        return
    unit = tl.program_id(0).to(tl.int64) * UNITS + tl.arange(0, UNITS)
    live = unit < unit_count
    unit = tl.where(live, unit, 0).to(tl.int32)
    row = unit // max_units
    pair = row // buffer_count
    layer = row - pair * buffer_count
    offset = unit - row * max_units
    live = live & (offset < tl.load(page_units + layer, mask=live, other=0))
    base = tl.load(addresses + layer, mask=live, other=0).to(tl.pointer_type(WORD))
    if WORDS_PER_UNIT == 2:
        base = tl.multiple_of(base, 16)
    stride = tl.load(stride_units + layer, mask=live, other=0)
    source = (tl.load(sources + pair, mask=live, other=0) * stride + offset) * WORDS_PER_UNIT
    target = (tl.load(targets + pair, mask=live, other=0) * stride + offset) * WORDS_PER_UNIT
    word = tl.arange(0, WORDS_PER_UNIT)[None, :]
    words = tl.load(base[:, None] + (source[:, None] + word), mask=live[:, None])
    tl.store(base[:, None] + (target[:, None] + word), words, mask=live[:, None])


def copy_pages_layered(
    layers: Layers, sources: torch.Tensor, targets: torch.Tensor, record: torch.Tensor
) -> None:
    """Copy page ``sources[i]`` onto page ``targets[i]`` in every buffer of ``layers``: one launch.

    Read and written: the buffers. Read: ``sources``, ``targets`` int64 [moves], validated before
    (``gather_virtual``) and disjoint; ``record`` int64 [16]: nothing is copied once it holds a
    corrupt state. Raises ValueError for a wrong dtype, device or length, and where the pages of
    one call exceed one grid or 2**31 units.
    """
    move_count = sources.numel()
    if move_count == 0:
        return
    require_pairs(sources, targets, layers.addresses)
    require_words("record", record, RECORD_WORDS, layers.addresses)
    words_per_unit = 2 if layers.unit_bytes == 16 else 1
    word = WORDS[layers.unit_bytes]
    buffer_count = len(layers.buffers)
    table = (layers.addresses, layers.page_units, layers.stride_units, sources, targets, record)
    if max(layers.page_bytes) >= CHUNKED_FROM_BYTES:
        chunk_count = -(-layers.max_page_units * words_per_unit // CHUNK_WORDS)
        launch(
            _copy_layered_chunked_kernel,
            move_count * buffer_count * chunk_count,
            *table, buffer_count, chunk_count,
            variant=(layers.unit_bytes,),
            WORD=word, WORDS_PER_UNIT=words_per_unit, BLOCK=CHUNK_WORDS,
        )  # fmt: skip
        return
    unit_count = move_count * buffer_count * layers.max_page_units
    if unit_count > MAX_UNITS:
        raise ValueError(f"sources: {move_count} pages are {unit_count} units, over {MAX_UNITS}")
    launch(
        _copy_layered_flat_kernel,
        -(-unit_count // FLAT_UNITS),
        *table, buffer_count, layers.max_page_units, unit_count,
        variant=(layers.unit_bytes,),
        WORD=word, WORDS_PER_UNIT=words_per_unit, UNITS=FLAT_UNITS,
    )  # fmt: skip


def copy_pages_layered_host(layers: Layers, sources: Words, targets: Words, record: Words) -> None:
    """``copy_pages_layered`` on host memory."""
    if is_stopped_host(record):
        return
    for buffer, page_bytes in zip(layers.buffers, layers.page_bytes, strict=True):
        pages = buffer.view(layers.num_pages, -1).view(torch.uint8).numpy()
        assert pages.shape == (layers.num_pages, page_bytes)
        pages[targets] = pages[sources]

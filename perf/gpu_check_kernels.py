"""Copy launches to measure against: the straightforward kernel, and ours with other tiles."""

from __future__ import annotations

import torch
import triton.language as tl

from kvdefrag.kernels.copy import WORDS, _copy_chunked_kernel, _copy_flat_kernel
from kvdefrag.kernels.launch import LANES, jit

PLAIN_CHUNK_WORDS = 2048
"""16 KiB a program."""

UNIT_BYTES = 16
UNIT_WORDS = 2


@jit(do_not_specialize_on_alignment=["sources", "targets"])
def _copy_plain_kernel(words, sources, targets, page_words, BLOCK: tl.constexpr):
    pair = tl.program_id(0)
    offset = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = offset < page_words
    source = tl.load(sources + pair).to(tl.int64) * page_words
    target = tl.load(targets + pair).to(tl.int64) * page_words
    tl.store(words + target + offset, tl.load(words + source + offset, mask=mask), mask=mask)


def copy_plain(
    buffer: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor, page_bytes: int
) -> None:
    """One program a page and 16 KiB chunk, the page size a run-time count of 8-byte words."""
    page_words = page_bytes // 8
    grid = (sources.numel(), -(-page_words // PLAIN_CHUNK_WORDS))
    _copy_plain_kernel[grid](
        buffer.view(torch.int64), sources, targets, page_words, BLOCK=PLAIN_CHUNK_WORDS
    )


def copy_chunked(
    buffer: torch.Tensor,
    sources: torch.Tensor,
    targets: torch.Tensor,
    page_bytes: int,
    record: torch.Tensor,
    chunk_words: int,
    num_warps: int,
) -> None:
    """The chunked form with ``chunk_words`` a program, for pages of a multiple of 16 bytes."""
    page_units = page_bytes // UNIT_BYTES
    chunk_count = -(-page_units * UNIT_WORDS // chunk_words)
    _copy_chunked_kernel[(sources.numel() * chunk_count,)](
        buffer, sources, targets, record, record, record, sources,
        sources.numel(), page_units, chunk_count,
        REBIND=False, WORD=WORDS[UNIT_BYTES], WORDS_PER_UNIT=UNIT_WORDS,
        BLOCK=chunk_words, LANES=LANES, num_warps=num_warps,
    )  # fmt: skip


def copy_flat(
    buffer: torch.Tensor,
    sources: torch.Tensor,
    targets: torch.Tensor,
    page_bytes: int,
    record: torch.Tensor,
    flat_units: int,
    num_warps: int,
) -> None:
    """The flat form with ``flat_units`` a program, for pages of a multiple of 16 bytes."""
    page_units = page_bytes // UNIT_BYTES
    unit_count = sources.numel() * page_units
    _copy_flat_kernel[(-(-unit_count // flat_units),)](
        buffer, sources, targets, record, record, record, sources,
        sources.numel(), page_units, unit_count,
        REBIND=False, WORD=WORDS[UNIT_BYTES], WORDS_PER_UNIT=UNIT_WORDS,
        UNITS=flat_units, LANES=LANES, num_warps=num_warps,
    )  # fmt: skip

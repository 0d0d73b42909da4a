"""copy_pages: every byte of every page, whatever its size, address and content."""

import math

import pytest
import torch

from kvdefrag.kernels import copy
from kvdefrag.kernels.copy import copy_form, copy_pages, copy_pages_host

from .byte_buffer import NO_FAULT, ByteBuffer, aligned_bytes, check_copy, random_moves

PAGE_BYTES = (
    1, 7, 8, 16, 24, 80, 656, 1152, 4096, 6635, 10496, 16384, 16384 + 8, 65536,
)  # fmt: skip
OFFSETS = (0, 1, 2, 4, 8, 16)
MIB = 1 << 20


def moves_for(page_bytes: int, unit_bytes: int) -> int:
    """A few programs' worth of pages: about 24 KiB, less where the units are small."""
    return max(2, min(200, 1500 * unit_bytes // page_bytes))


@pytest.mark.parametrize("page_bytes", PAGE_BYTES)
@pytest.mark.parametrize("offset", OFFSETS)
def test_any_size_at_any_address(page_bytes: int, offset: int) -> None:
    move_count = moves_for(page_bytes, math.gcd(page_bytes, offset or 16, 16))
    page_count = 2 * move_count + 4
    buffer = ByteBuffer(page_bytes, page_count, offset, tail_bytes=page_bytes // 2)
    check_copy(buffer, *random_moves(page_count, move_count))


@pytest.mark.parametrize("page_bytes", [80, 16384])
def test_no_moves(page_bytes: int) -> None:
    check_copy(ByteBuffer(page_bytes, 3), [], [])


@pytest.mark.parametrize("page_bytes", [80, 16384])
def test_first_and_last_page(page_bytes: int) -> None:
    check_copy(ByteBuffer(page_bytes, 5), [0, 4], [1, 3])
    check_copy(ByteBuffer(page_bytes, 5), [1, 3], [0, 4])


@pytest.mark.parametrize("offset", [0, 1])
def test_page_of_16_mib(offset: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy, "CHUNK_WORDS", 1 << 20)
    check_copy(ByteBuffer(16 * MIB, 2, offset), [1], [0])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("page_bytes", [8192, 16384])
def test_every_bit_pattern_survives(dtype: torch.dtype, page_bytes: int) -> None:
    """All 16-bit patterns, so all bytes and all NaN payloads of bfloat16, and many of float32."""
    patterns = torch.arange(65536).to(torch.uint16).view(torch.uint8)
    move_count = patterns.numel() // page_bytes
    sources = torch.randperm(move_count, generator=torch.Generator().manual_seed(0))
    targets = torch.arange(move_count, 2 * move_count)
    for way in (copy_pages, copy_pages_host):
        pool = aligned_bytes(2 * patterns.numel()).view(dtype)
        pool.view(torch.uint8)[:] = torch.cat([patterns, patterns.flip(0)])
        arguments = (pool.view(torch.uint8), sources, targets, page_bytes, NO_FAULT)
        if way is copy_pages_host:
            arguments = tuple(a.numpy() if isinstance(a, torch.Tensor) else a for a in arguments)
        way(*arguments)
        pages = pool.view(torch.uint8).view(-1, page_bytes)
        assert torch.equal(pages[:move_count].flatten(), patterns)
        assert torch.equal(pages[move_count:], pages[sources])


@pytest.mark.parametrize(
    ("page_bytes", "offset", "unit_bytes"),
    [
        (16, 0, 16), (4096, 0, 16), (656, 0, 16), (65536, 0, 16),
        (4096, 8, 8), (24, 0, 8), (8, 0, 8), (16384 + 8, 0, 8), (65536, 8, 8),
        (4096, 4, 4), (4096, 12, 4), (20, 0, 4), (65536 + 4, 0, 4),
        (4096, 2, 2), (10, 0, 2), (22, 8, 2), (65536, 6, 2),
        (4096, 1, 1), (7, 0, 1), (6635, 0, 1), (65536, 15, 1), (1, 0, 1),
    ],
)  # fmt: skip
def test_widest_access_that_size_and_address_allow(
    page_bytes: int, offset: int, unit_bytes: int
) -> None:
    form = copy_form(aligned_bytes(3 * page_bytes + offset)[offset:], page_bytes)
    assert form.unit_bytes == unit_bytes
    assert form.page_units * unit_bytes == page_bytes
    assert form.words_per_unit == (2 if unit_bytes == 16 else 1)
    assert form.chunked == (page_bytes >= 16384)


@pytest.mark.parametrize(("base", "offset"), [(4, 4), (8, 8), (4, 12), (1, 7), (2, 6), (12, 4)])
def test_slice_of_a_foreign_buffer(base: int, offset: int) -> None:
    """A view whose address is rounder than its offset into a storage that starts anywhere."""
    foreign = torch.from_numpy(aligned_bytes(4096).numpy()[base:])
    buffer = foreign[offset:]
    buffer[:] = torch.arange(buffer.numel()).to(torch.uint8)
    wanted = buffer.clone()
    wanted[80:160] = wanted[160:240]
    copy_pages(buffer, torch.tensor([2]), torch.tensor([1]), 80, NO_FAULT)
    assert torch.equal(buffer, wanted)


@pytest.mark.parametrize("page_bytes", [6635, 16384 + 1])
def test_addresses_past_32_bits(page_bytes: int) -> None:
    """The system backs only the touched pages of so large a buffer with memory."""
    last = 2**31 // page_bytes + 1
    buffer = torch.empty((last + 1) * page_bytes, dtype=torch.uint8)
    pages = buffer.view(-1, page_bytes)
    pattern = torch.arange(2 * page_bytes).to(torch.uint8).view(2, page_bytes)
    for way in (copy_pages, copy_pages_host):
        pages[last], pages[1] = pattern[0], pattern[1]
        arguments = (buffer, torch.tensor([last, 1]), torch.tensor([2, last - 1]))
        if way is copy_pages_host:
            copy_pages_host(*(a.numpy() for a in arguments), page_bytes, NO_FAULT.numpy())
        else:
            copy_pages(*arguments, page_bytes, NO_FAULT)
        assert torch.equal(pages[2], pattern[0])
        assert torch.equal(pages[last - 1], pattern[1])
        pages[2] = pages[last - 1] = 0

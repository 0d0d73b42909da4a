"""Byte buffers at any address, between guards, and copies of pages in them run three ways."""

import random
from collections.abc import Sequence

import numpy as np
import torch

from kvdefrag.kernels.copy import copy_pages, copy_pages_host

from . import model
from .interpreter import checked_memory, extent

GUARD_BYTES = 32 * 1024
"""More than a program writes, so that a lost mask meets a guard."""

NO_FAULT = torch.zeros(16, dtype=torch.int64)


class ByteBuffer:
    """``page_count`` pages and ``tail_bytes`` more, ``offset`` bytes off a 64-byte address."""

    def __init__(
        self, page_bytes: int, page_count: int, offset: int = 0, tail_bytes: int = 0
    ) -> None:
        self.page_bytes = page_bytes
        self.start = GUARD_BYTES + offset
        self.end = self.start + page_count * page_bytes + tail_bytes
        generator = np.random.default_rng(page_bytes * 31 + offset)
        self.whole = aligned_bytes(self.end + GUARD_BYTES)
        self.whole[:] = torch.from_numpy(
            generator.integers(0, 256, self.whole.numel(), dtype=np.uint8)
        )

    def clone_inner(self) -> tuple[torch.Tensor, torch.Tensor]:
        """A copy of everything, and the view of its pages, at the same alignment."""
        whole = aligned_bytes(self.whole.numel())
        whole[:] = self.whole
        return whole, whole[self.start : self.end]


def aligned_bytes(byte_count: int) -> torch.Tensor:
    """uint8 [byte_count] at a multiple of 64 bytes."""
    memory = torch.empty(byte_count + 64, dtype=torch.uint8)
    shift = -memory.data_ptr() % 64
    return memory[shift : shift + byte_count]


def random_moves(page_count: int, move_count: int, seed: int = 0) -> tuple[list[int], list[int]]:
    """Disjoint sources and targets among pages 1 and up."""
    pages = random.Random(seed).sample(range(1, page_count), 2 * move_count)
    return pages[:move_count], pages[move_count:]


def check_copy(
    buffer: ByteBuffer, sources: Sequence[int], targets: Sequence[int], interpret: bool = True
) -> None:
    """Kernel, twin and plain bytes agree on every byte, guards included."""
    page_bytes = buffer.page_bytes
    inner = buffer.whole[buffer.start : buffer.end].numpy().tobytes()
    wanted = buffer.whole.clone()
    pages = model.copy_pages(inner, sources, targets, page_bytes)
    wanted[buffer.start : buffer.end] = torch.frombuffer(bytearray(pages), dtype=torch.uint8)
    source_pages, target_pages = torch.tensor(sources), torch.tensor(targets)
    if not sources:
        source_pages, target_pages = source_pages.long(), target_pages.long()

    whole, view = buffer.clone_inner()
    twin = (view.numpy(), source_pages.numpy(), target_pages.numpy(), page_bytes)
    copy_pages_host(*twin, NO_FAULT.numpy())
    assert torch.equal(whole, wanted), "twin"
    if interpret:
        whole, view = buffer.clone_inner()
        with checked_memory(extent(whole, buffer.start, buffer.end)):
            copy_pages(view, source_pages, target_pages, page_bytes, NO_FAULT)
        assert torch.equal(whole, wanted), "kernel"

"""The bytes of a pool's pages, written from keys and compared with them, a chunk at a time.

What a page with key `k` holds is defined in `page_stamps`. There are two forms of one thing: numpy
on the CPU, where a call on a small array costs a fraction of torch's, and torch elsewhere.
"""

from typing import Any, Protocol

import numpy as np
import torch

from .content_keys import Keys, mix64

WORD_BYTES = 8
CHUNK_BYTES = {"cpu": 1 << 20, "cuda": 1 << 26}


class PageCells(Protocol):
    """Pages as rows of cells: 64-bit words where pages consist of such, else bytes.

    At most `chunk_pages` pages go into one call. `pages` are physical page ids, int64 `[n]`, on the
    device; `keys` are `[n]`, on the host.
    """

    chunk_pages: int

    def write(self, pages: torch.Tensor, keys: Keys) -> None:
        """Fill `pages` with the patterns of `keys`."""

    def compare(self, pages: torch.Tensor, keys: Keys) -> bool:
        """Whether `pages` hold exactly the patterns of `keys`."""

    def compared(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The cells that the last `compare` expected and found."""


class HostCells:
    """Pages of a CPU tensor."""

    def __init__(self, pages: torch.Tensor) -> None:
        cells = pages.numpy()
        self._cells = cells.view(np.uint64) if _in_words(pages) else cells
        self._base = _base(pages)
        self.chunk_pages = _chunk_pages(pages)
        # Made once: pages that come fresh from the system cost more than the comparison.
        shape = self.chunk_pages, self._cells.shape[1]
        self._words = np.empty((self.chunk_pages, self._base.size), np.uint64)
        self._found = np.empty(shape, self._cells.dtype)
        self._wrong = np.empty(shape, np.bool_)
        self._count = 0

    def write(self, pages: torch.Tensor, keys: Keys) -> None:
        """Fill `pages` with the patterns of `keys`."""
        self._cells[pages.numpy()] = self._pattern(keys)

    def compare(self, pages: torch.Tensor, keys: Keys) -> bool:
        """Whether `pages` hold exactly the patterns of `keys`."""
        self._count = count = keys.size
        found, wrong = self._found[:count], self._wrong[:count]
        self._cells.take(pages.numpy(), axis=0, out=found, mode="clip")
        np.not_equal(found, self._pattern(keys), out=wrong)
        return not np.count_nonzero(wrong)

    def compared(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The cells that the last `compare` expected and found, as bytes."""
        page_bytes = self._cells.itemsize * self._cells.shape[1]
        expected = self._words[: self._count].view(np.uint8)[:, :page_bytes]
        found = self._found[: self._count].view(np.uint8)
        return torch.from_numpy(expected), torch.from_numpy(found)

    def _pattern(self, keys: Keys) -> Any:
        words = np.bitwise_xor(keys[:, None], self._base, out=self._words[: keys.size])
        if self._cells.dtype == np.uint64:
            return words
        return words.view(np.uint8)[:, : self._cells.shape[1]]


class DeviceCells:
    """Pages of a tensor on any device."""

    def __init__(self, pages: torch.Tensor) -> None:
        self._cells = pages.view(torch.int64) if _in_words(pages) else pages
        self._base = torch.from_numpy(_base(pages).view(np.int64)).to(pages.device)
        self.chunk_pages = _chunk_pages(pages)
        self._expected = self._found = self._cells[:0]

    def write(self, pages: torch.Tensor, keys: Keys) -> None:
        """Fill `pages` with the patterns of `keys`."""
        self._cells.index_copy_(0, pages, self._pattern(keys))

    def compare(self, pages: torch.Tensor, keys: Keys) -> bool:
        """Whether `pages` hold exactly the patterns of `keys`."""
        self._expected = self._pattern(keys)
        self._found = self._cells.index_select(0, pages)
        return torch.equal(self._found, self._expected)

    def compared(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The cells that the last `compare` expected and found, as bytes."""
        return self._expected.view(torch.uint8), self._found.view(torch.uint8)

    def _pattern(self, keys: Keys) -> torch.Tensor:
        key_column = torch.from_numpy(keys.view(np.int64)[:, None]).to(self._base.device)
        words = key_column ^ self._base
        if self._cells.dtype == torch.int64:
            return words
        return words.view(torch.uint8)[:, : self._cells.shape[1]].contiguous()


def page_cells(pages: torch.Tensor) -> PageCells:
    """The cells of `pages`, uint8 `[num_pages, page_bytes]`."""
    return HostCells(pages) if pages.device.type == "cpu" else DeviceCells(pages)


def _in_words(pages: torch.Tensor) -> bool:
    return pages.shape[1] % WORD_BYTES == 0 and pages.data_ptr() % WORD_BYTES == 0


def _base(pages: torch.Tensor) -> Keys:
    words = -(-pages.shape[1] // WORD_BYTES)
    return mix64(np.arange(1, words + 1, dtype=np.uint64))


def _chunk_pages(pages: torch.Tensor) -> int:
    return max(1, CHUNK_BYTES[pages.device.type] // pages.shape[1])

"""An engine's forwards, as honest as a CPU allows: they use the addresses of when they began."""

from typing import NamedTuple

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view

from kvdefrag.allocator.testing import ManualFence

NOISE = np.random.default_rng(7).integers(256, size=1 << 16, dtype=np.uint8)
STRIDE = 40503


class PageBytes:
    """The bytes of one pool's pages, and the pattern that every stamp stands for."""

    def __init__(self, buffer: torch.Tensor, page_bytes: int) -> None:
        num_pages = buffer.numel() // page_bytes
        self.pages = buffer.numpy()[: num_pages * page_bytes].reshape(num_pages, page_bytes)
        self._patterns = sliding_window_view(NOISE, page_bytes)

    def pattern(self, stamps: list[int]) -> np.ndarray:
        return self._patterns[np.array(stamps, np.int64) * STRIDE % len(self._patterns)]

    def write(self, places: list[int], stamps: list[int]) -> None:
        self.pages[places] = self.pattern(stamps)

    def wrong(self, places: list[int], stamps: list[int]) -> list[int]:
        """Indices of the pages that do not hold their pattern."""
        if not places:
            return []
        differs = self.pages[places] != self.pattern(stamps)
        return differs.any(1).nonzero()[0].tolist() if differs.any() else []


class Page:
    """A live page as its owner sees it.

    `stamp`: what its bytes are now; None while a forward of the owner before has yet to write them,
    which its owner overwrites with `first`. `after`: what they are once all forwards have run.
    """

    __slots__ = ("after", "first", "live", "stamp")

    def __init__(self, stamp: int, written: bool) -> None:
        self.live = True
        self.first = self.after = stamp
        self.stamp = stamp if written else None


class Access(NamedTuple):
    """A page that a forward reads or writes, where it was when that began, and what it holds."""

    name: str
    place: int
    page: Page
    stamp: int


class Forward(NamedTuple):
    """A forward that has not run yet."""

    fence: ManualFence
    reads: list[Access]
    writes: list[Access]

    def run(self, bytes_of: dict[str, PageBytes]) -> None:
        """Read and write through the old addresses."""
        for name, in_pool in bytes_of.items():
            reads = [a for a in self.reads if a.name == name and a.page.live]
            wrong = in_pool.wrong([a.place for a in reads], [a.stamp for a in reads])
            assert not wrong, f"a forward in flight lost what it reads: {reads[wrong[0]]}"
            writes = [access for access in self.writes if access.name == name]
            if writes:
                in_pool.write([a.place for a in writes], [a.stamp for a in writes])
        for access in self.writes:
            access.page.stamp = access.stamp

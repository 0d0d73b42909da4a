"""Byte patterns that prove where a page's bytes went: write, compare exactly, report.

Byte `b` of a page with key `k` is byte `b % 8` (little-endian) of the word `k ^ base[b // 8]`,
where `base` is one fixed pseudo-random word for every place in a page. Pages with different keys
differ in every whole word, and a page that was shifted or torn differs as well.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from .arena_face import PoolFace
from .content_keys import Keys, mix64
from .page_cells import page_cells

SAMPLED_KEYS = np.uint64(1 << 60)
"""A sampled page's mixed key lies below this: 1 page in 16."""


@dataclass(frozen=True)
class WrongByte:
    """The first byte of a page that differs from what was written."""

    pool: str
    moment: str
    virtual_page: int
    physical_page: int
    byte: int
    expected: int
    found: int

    def __str__(self) -> str:
        return (
            f"{self.moment}: pool {self.pool}, virtual page {self.virtual_page} at physical page "
            f"{self.physical_page}, byte {self.byte}: expected {self.expected:#04x}, "
            f"found {self.found:#04x}"
        )


@dataclass
class Verdict:
    """What all comparisons found so far."""

    pages_checked: int = 0
    wrong_pages: int = 0
    first_wrong: WrongByte | None = None


class PageStamps:
    """Stamps the pages of one pool, and compares them.

    `verify` is `"full"`, `"sample"` (only pages whose key falls into a share of 1/16 that `seed`
    chooses are stamped and compared) or `"off"`. Work is done in chunks of a fixed number of bytes,
    at least one page, so memory stays bounded whatever is compared.
    """

    def __init__(self, name: str, pool: PoolFace, verdict: Verdict, verify: str, seed: int) -> None:
        self._name = name
        self._pool = pool
        self._verdict = verdict
        self._verify = verify
        self._seed = np.uint64(seed)
        assert pool.pages is not None
        self._cells = page_cells(pool.pages)

    def write(self, virtual_ids: torch.Tensor, keys: Keys) -> None:
        """Fill the pages `virtual_ids` (int64, `[n]`) with the patterns of `keys` (`[n]`)."""
        for _, pages, chunk_keys in self._chunks(virtual_ids, keys):
            self._cells.write(pages, chunk_keys)

    def compare(self, virtual_ids: torch.Tensor, keys: Keys, moment: str) -> None:
        """Compare every byte of the pages `virtual_ids` with the patterns of `keys`.

        What is found goes to the verdict; `moment` says there when the comparison was made.
        """
        for ids, pages, chunk_keys in self._chunks(virtual_ids, keys):
            self._verdict.pages_checked += chunk_keys.size
            if not self._cells.compare(pages, chunk_keys):
                self._record(ids, pages, moment)

    def _chunks(
        self, virtual_ids: torch.Tensor, keys: Keys
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor, Keys]]:
        """Yield ids, their pages and their keys."""
        if self._verify == "off":
            return
        if self._verify == "sample":
            sampled = np.flatnonzero(mix64(keys ^ self._seed) < SAMPLED_KEYS)
            virtual_ids = virtual_ids[torch.from_numpy(sampled).to(virtual_ids.device)]
            keys = keys[sampled]
        if not keys.size:
            return
        pages = self._pool.translate(virtual_ids)
        chunk_pages = self._cells.chunk_pages
        if keys.size <= chunk_pages:
            yield virtual_ids, pages, keys
            return
        for first in range(0, keys.size, chunk_pages):
            chunk = slice(first, first + chunk_pages)
            yield virtual_ids[chunk], pages[chunk], keys[chunk]

    def _record(self, virtual_ids: torch.Tensor, pages: torch.Tensor, moment: str) -> None:
        """Count the wrong pages of a chunk; keep the first wrong byte of the replay."""
        expected, found = self._cells.compared()
        differs = found != expected
        wrong = differs.any(dim=1).nonzero()[:, 0]
        self._verdict.wrong_pages += wrong.shape[0]
        if self._verdict.first_wrong is not None:
            return
        row = int(wrong[0])
        byte = int(differs[row].nonzero()[0])
        self._verdict.first_wrong = WrongByte(
            pool=self._name,
            moment=moment,
            virtual_page=int(virtual_ids[row]),
            physical_page=int(pages[row]),
            byte=byte,
            expected=int(expected[row, byte]),
            found=int(found[row, byte]),
        )

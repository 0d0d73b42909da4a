"""Byte patterns that prove where a page's bytes went: write, compare exactly, report.

Byte `b` of a page with key `k` is byte `b % 8` (little-endian) of the word `k ^ base[b // 8]`,
where `base` is one fixed pseudo-random word for every place in a page. Pages with different keys
differ in every whole word, and a page that was shifted or torn differs as well.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from kvdefrag import MultiEndedAllocator

from .content_keys import Integers, Keys, mix64

WORD_BYTES = 8
CHUNK_BYTES = {"cpu": 1 << 20, "cuda": 1 << 26}
SAMPLED_KEYS = np.uint64(1 << 60)
"""A sampled page's mixed key lies below this: 1 page in 16."""


def to_device(values: Integers, device: torch.device) -> torch.Tensor:
    """Give `values` as a tensor on `device`; on the CPU it shares their memory."""
    tensor = torch.from_numpy(values)
    return tensor if device.type == "cpu" else tensor.to(device)


def put_rows(cells: torch.Tensor, rows: torch.Tensor, values: torch.Tensor) -> None:
    """Write `values` (`[n, words]`) to the `rows` (int64, `[n]`) of `cells`."""
    if cells.device.type == "cpu":
        # numpy copies whole rows, at twice the speed of torch here.
        cells.numpy()[rows.numpy()] = values.numpy()
    else:
        cells.index_copy_(0, rows, values)


def take_rows(cells: torch.Tensor, rows: torch.Tensor, out: torch.Tensor) -> None:
    """Read the `rows` (int64, `[n]`) of `cells` into `out` (`[n, words]`)."""
    if cells.device.type == "cpu":
        np.take(cells.numpy(), rows.numpy(), axis=0, out=out.numpy(), mode="clip")
    else:
        torch.index_select(cells, 0, rows, out=out)


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

    def __init__(
        self, name: str, pool: MultiEndedAllocator, verdict: Verdict, verify: str, seed: int
    ) -> None:
        self._name = name
        self._pool = pool
        self._verdict = verdict
        self._verify = verify
        self._seed = np.uint64(seed)
        pages = pool.pages
        assert pages is not None
        page_bytes = pages.shape[1]
        words = -(-page_bytes // WORD_BYTES)
        whole = page_bytes % WORD_BYTES == 0 and pages.data_ptr() % WORD_BYTES == 0
        self._cells = pages.view(torch.int64) if whole else pages
        base = mix64(np.arange(1, words + 1, dtype=np.uint64))
        self._base = torch.from_numpy(base.view(np.int64)).to(pages.device)
        self._chunk_pages = max(1, CHUNK_BYTES[pages.device.type] // page_bytes)
        # Made once: pages that come fresh from the system cost more than the comparison.
        self._expected = self._base.new_empty((self._chunk_pages, words))
        self._found = self._cells.new_empty((self._chunk_pages, self._cells.shape[1]))

    def write(self, virtual_ids: torch.Tensor, keys: Keys) -> None:
        """Fill the pages `virtual_ids` (int64, `[n]`) with the patterns of `keys` (`[n]`)."""
        for ids, expected in self._chunks(virtual_ids, keys):
            put_rows(self._cells, self._pool.translate(ids), expected)

    def compare(self, virtual_ids: torch.Tensor, keys: Keys, moment: str) -> None:
        """Compare every byte of the pages `virtual_ids` with the patterns of `keys`.

        What is found goes to the verdict; `moment` says there when the comparison was made.
        """
        for ids, expected in self._chunks(virtual_ids, keys):
            found = self._found.narrow(0, 0, ids.shape[0])
            take_rows(self._cells, self._pool.translate(ids), found)
            self._verdict.pages_checked += ids.shape[0]
            if not torch.equal(found, expected):
                self._record(ids, expected, found, moment)

    def _chunks(
        self, virtual_ids: torch.Tensor, keys: Keys
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield ids and the cells that their pages must hold; the cells last until the next."""
        if self._verify == "off":
            return
        if self._verify == "sample":
            sampled = np.flatnonzero(mix64(keys ^ self._seed) < SAMPLED_KEYS)
            virtual_ids = virtual_ids[to_device(sampled, virtual_ids.device)]
            keys = keys[sampled]
        if len(keys) <= self._chunk_pages:
            if len(keys):
                yield virtual_ids, self._pattern(keys)
            return
        for first in range(0, len(keys), self._chunk_pages):
            chunk = slice(first, first + self._chunk_pages)
            yield virtual_ids[chunk], self._pattern(keys[chunk])

    def _pattern(self, keys: Keys) -> torch.Tensor:
        key_column = to_device(keys.view(np.int64)[:, None], self._base.device)
        words = self._expected.narrow(0, 0, len(keys))
        torch.bitwise_xor(key_column, self._base, out=words)
        if self._cells.dtype == torch.int64:
            return words
        return words.view(torch.uint8)[:, : self._cells.shape[1]]

    def _record(
        self, virtual_ids: torch.Tensor, expected: torch.Tensor, found: torch.Tensor, moment: str
    ) -> None:
        """Count the wrong pages of a chunk; keep the first wrong byte of the replay."""
        wrong = (found != expected).any(dim=1).nonzero()[:, 0]
        self._verdict.wrong_pages += wrong.shape[0]
        if self._verdict.first_wrong is not None:
            return
        row = wrong[0]
        expected_bytes = expected[row].contiguous().view(torch.uint8)
        found_bytes = found[row].view(torch.uint8)
        byte = int((found_bytes != expected_bytes).nonzero()[0])
        self._verdict.first_wrong = WrongByte(
            pool=self._name,
            moment=moment,
            virtual_page=int(virtual_ids[row]),
            physical_page=int(self._pool.translate(virtual_ids[row].reshape(1))),
            byte=byte,
            expected=int(expected_bytes[byte]),
            found=int(found_bytes[byte]),
        )

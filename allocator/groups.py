"""Frees by token, alone or collected in a group and applied together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch

from kvdefrag.kernels.backend import Operand
from kvdefrag.kernels.marks import MAX_MARKED
from kvdefrag.kernels.token_group import Segment

from .band import Band
from .debug import check_not_held, host_pages, with_pages
from .faults import UsageError
from .shared import Shared


def unbind_tokens(
    shared: Shared,
    band: Band,
    token_ids: torch.Tensor,
    page_size: int,
    page_count: int,
    operation: str = "free_tokens",
) -> None:
    """Take back the ``page_count`` distinct pages of ``token_ids``: one launch."""
    table, ids, asked = band.table, band.ids, shared.backend.operand(token_ids)

    def launch(pages: Operand, pages_end: int, call_tag: int) -> None:
        shared.backend.unbind_tokens(
            table.v2p, table.p2v, table.marks, asked, page_size, page_count, pages, pages_end,
            ids.buffer, ids.recycled, shared.record.words, table.next_serial(), call_tag,
            table.holders,
        )  # fmt: skip

    band.take_back(page_count, operation, launch)


def unbind_run(shared: Shared, band: Band, token_ids: torch.Tensor, page_count: int) -> None:
    """Take back the pages of a run of tokens: one launch."""
    table, ids, asked = band.table, band.ids, shared.backend.operand(token_ids)

    def launch(pages: Operand, pages_end: int, call_tag: int) -> None:
        shared.backend.unbind_run(
            table.v2p, table.p2v, asked, band.spec.page_size, pages, pages_end,
            ids.buffer, ids.recycled, shared.record.words, call_tag, table.holders,
        )  # fmt: skip

    band.take_back(page_count, "free_token_run", launch)


class _Call(NamedTuple):
    """One free of a group: ids of tokens, or of pages as pages of one token."""

    token_ids: torch.Tensor
    page_size: int
    page_count: int
    whole: bool


class FreeGroup:
    """Frees of all pools, collected while it is open and applied when its block ends.

    Nothing is freed if the block raises.
    """

    __slots__ = ("_calls", "_page_counts", "_seen", "_shared")

    def __init__(self, shared: Shared, page_counts: Mapping[str, int]) -> None:
        self._shared = shared
        self._page_counts = page_counts
        self._calls: dict[int, list[_Call]] = {}
        self._seen: dict[int, dict[int, bool]] = {}

    def __enter__(self) -> None:
        if self._shared.groups:
            raise UsageError("free_group: one is open already")
        self._shared.groups.append(self)

    def __exit__(self, error: object, *rest: object) -> None:
        self._shared.groups.clear()
        try:
            if error is None:
                self._apply()
        finally:
            # A group that is opened once more starts from nothing.
            self._calls, self._seen = {}, {}

    def add(
        self,
        band: Band,
        token_ids: torch.Tensor,
        page_size: int,
        page_count: int,
        whole: bool,
    ) -> None:
        """Note a free of ``page_count`` pages. ``whole``: it names each of them once.

        With ``debug=True`` raises UsageError if pages come twice, unless all calls name tokens or
        ``page_counts`` says how many pages there are.
        """
        if self._shared.debug:
            pages = self.look(band, token_ids, page_size, whole)
            self._seen.setdefault(band.index, {}).update(dict.fromkeys(pages, whole))
        if token_ids.numel():
            self._calls.setdefault(band.index, []).append(
                _Call(token_ids, page_size, page_count, whole)
            )

    def look(self, band: Band, token_ids: torch.Tensor, page_size: int, whole: bool) -> list[int]:
        """The pages that ``add`` would note; raises what that raises. Reads the device."""
        seen = self._seen.get(band.index, {})
        pages = host_pages(token_ids, page_size)
        if band.table.lender is not None:
            pages = with_pages(band, pages)
        for index, page in enumerate(pages):
            if page in seen and (whole or seen[page]) and band.spec.name not in self._page_counts:
                raise UsageError(
                    f"virtual_ids[{index}]: id {page} of pool {band.spec.name!r} is there twice "
                    f"in this group"
                )
        return pages

    def _apply(self) -> None:
        """One launch for each pool, borrowers first; everything is checked before the first."""
        shared = self._shared
        shared.record.raise_if_stopped()
        bands = [shared.compactor.bands[index] for index in self._calls]
        bands.sort(key=lambda band: band.table.lender is None)
        counts = {
            band.index: self._page_counts.get(
                band.spec.name, sum(call.page_count for call in self._calls[band.index])
            )
            for band in bands
        }
        self._check(bands, counts)
        for band in bands:
            self._unbind(band, self._calls[band.index], counts[band.index])

    def _check(self, bands: list[Band], counts: dict[int, int]) -> None:
        named = {band.spec.name for band in bands}
        for name, count in self._page_counts.items():
            if count and name not in named:
                raise UsageError(f"page_counts[{name!r}]: {count}, but nothing of it was freed")
        for band in bands:
            name, count, calls = band.spec.name, counts[band.index], self._calls[band.index]
            if sum(call.token_ids.numel() for call in calls) > MAX_MARKED:
                raise UsageError(f"free_group: at most {MAX_MARKED} ids of pool {name!r}")
            most = min(band.live, sum(call.page_count for call in calls))
            least = max(call.page_count for call in calls)
            if self._shared.debug:
                most = least = len(self._seen[band.index])
            if not least <= count <= most:
                raise UsageError(
                    f"page_counts[{name!r}]: expected {least} to {most} for what the group frees "
                    f"of {band.live} live pages, got {count}"
                )
            if self._shared.debug:
                for borrower in self._shared.borrowers_of(band):
                    released = self._seen.get(borrower.index, {})
                    kept = [page for page in self._seen[band.index] if page not in released]
                    check_not_held(borrower, "virtual_ids", kept)

    def _unbind(self, band: Band, calls: list[_Call], page_count: int) -> None:
        shared = self._shared
        # A call that names each page once allows no gaps: the kernel for groups tells them apart.
        if len(calls) == 1 and not (calls[0].whole and band.table.lender is not None):
            unbind_tokens(shared, band, calls[0].token_ids, calls[0].page_size, page_count)
            return
        table, ids, backend = band.table, band.ids, shared.backend
        segments = [
            Segment(backend.operand(call.token_ids), call.page_size, call.whole) for call in calls
        ]

        def launch(pages: Operand, pages_end: int, call_tag: int) -> None:
            backend.unbind_group(
                table.v2p, table.p2v, table.marks, segments, page_count, pages, pages_end,
                ids.buffer, ids.recycled, shared.record.words, table.next_serial(), call_tag,
                table.holders,
            )  # fmt: skip

        band.take_back(page_count, "free_group", launch)

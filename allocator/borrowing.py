"""The calls of a pool that borrows its ids, and frees that take pages from such pools first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from kvdefrag.kernels.marks import MAX_MARKED

from .band import Band, more_than_live
from .debug import check_bound_ids, check_gaps, check_lent, check_not_held, host_pages
from .faults import UsageError
from .geometry import require_count
from .grant import bind_ids, ensure_room, hand_out
from .groups import unbind_tokens
from .pool_calls import PoolCalls
from .shared import Shared


class BorrowCalls(PoolCalls):
    """What ``MultiEndedAllocator`` offers where ``PoolSpec(ids_from=)`` names another pool.

    Ids are allocated and freed there. Here they get pages and lose them, some or all of them, as a
    sliding window does that keeps the last pages of a sequence only. An id that has a page here
    cannot be freed there. ``translate`` and the other calls take the same ids.
    """

    __slots__ = ()

    def bind(self, virtual_ids: Any) -> None:
        """Give ``virtual_ids`` pages of this pool: int32 or int64 [ids] on the device, any stride.

        One launch, as ``alloc``. They are allocated in their own pool and have no page here yet;
        one that is not, or is there twice, is refused on the device: a UsageError at the next flush
        that finds holes or at ``arena.check()``, with ``debug=True`` here. Raises OutOfPages, with
        nothing changed, if the live pages leave no room, and UsageError for more ids than have no
        page here.
        """
        band, shared = self._band, self._shared
        shared.record.raise_if_stopped()
        _require_borrowed(band, "bind")
        ids = self._ids(virtual_ids, check=True)
        count = ids.numel()
        if shared.debug:
            check_lent(band, ids)
        if count > band.ids.count:
            # An id that was refused before may have put the counts off: then that is the fault.
            shared.compactor.check_record()
            raise UsageError(
                f"virtual_ids: {count} ids, but {band.ids.count} of pool {band.spec.ids_from!r} "
                f"are allocated without a page in {band.spec.name!r}"
            )
        ensure_room(shared, band, count, "bind")
        if count:
            hand_out(shared, band, count, "bind", bind_ids(shared, band, ids))

    def release(self, virtual_ids: Any, page_count: int | None = None) -> None:
        """Take the pages of ``virtual_ids`` here back; the ids stay allocated in their own pool.

        int32 or int64 [ids] on the device, any stride; one launch. With ``page_count`` the list may
        have gaps, which are passed over: ids without a page here, 0 and -1; an id that is there
        twice counts once. ``page_count`` says how many have a page. The device checks it; another
        number is a UsageError, and pages beyond it stay. Without it every id has a page, and one
        that has none is refused.
        """
        band, shared = self._band, self._shared
        shared.record.raise_if_stopped()
        _require_borrowed(band, "release")
        ids = self._ids(virtual_ids, check=True, gaps=page_count is not None)
        if page_count is not None:
            self._release(ids, 1, page_count, "virtual_ids")
            return
        count = ids.numel()
        if shared.debug:
            check_bound_ids(band, ids)
        if count > band.live:
            raise more_than_live(band, "virtual_ids", count)
        shared.counters.free_calls += 1
        if shared.groups:
            shared.groups[0].add(band, ids, 1, count, whole=True)
        elif count:
            band.unbind(shared.backend.operand(ids), count, "release")

    def release_tokens(self, token_ids: Any, page_count: int) -> None:
        """``release`` with gaps, of the pages of ``token_ids``: any order, any tokens of a page."""
        self._shared.record.raise_if_stopped()
        _require_borrowed(self._band, "release_tokens")
        ids = self._ids(token_ids, "token_ids")
        self._release(ids, self._band.spec.page_size, page_count, "token_ids")

    def _release(self, ids: torch.Tensor, page_size: int, page_count: int, name: str) -> None:
        band, shared = self._band, self._shared
        count = require_count("page_count", page_count)
        if ids.numel() > MAX_MARKED:
            raise UsageError(f"{name}: at most {MAX_MARKED} in one call, got {ids.numel()}")
        if count > ids.numel():
            raise UsageError(f"page_count: {ids.numel()} {name} cannot be of {count} pages")
        if shared.debug:
            check_gaps(band, name, ids, page_size, count)
        if count > band.live:
            raise more_than_live(band, name, count)
        shared.counters.free_calls += 1
        # With a count of 0 as well: the device finds out whether it is true.
        if ids.numel():
            _take_back(shared, band, ids, page_size, count)


class Release(NamedTuple):
    """``page_count`` pages that a borrower gives back before its lender frees their ids."""

    band: Band
    page_count: int


def cascaded(shared: Shared, band: Band, cascade: Any, page_count: int) -> list[Release]:
    """``cascade``, pages by name of a pool that borrows from ``band``, checked.

    ``page_count``: pages of the free that it goes with.
    """
    borrowers = {each.spec.name: each for each in shared.borrowers_of(band)}
    if not isinstance(cascade, Mapping):
        raise UsageError(f"cascade: expected a dict of pages by pool name, got {cascade!r}")
    found = []
    for name, count in cascade.items():
        if name not in borrowers:
            raise UsageError(
                f"cascade: pool {name!r} does not borrow from {band.spec.name!r}, "
                f"those that do are {list(borrowers)}"
            )
        where = f"cascade[{name!r}]"
        pages = require_count(where, count)
        if pages > page_count:
            raise UsageError(f"{where}: {pages} pages of {page_count} ids")
        if pages > borrowers[name].live:
            raise more_than_live(borrowers[name], where, pages)
        found.append(Release(borrowers[name], pages))
    return found


def check_cascade(
    shared: Shared,
    band: Band,
    name: str,
    ids: torch.Tensor,
    page_size: int,
    releases: Sequence[Release],
    whole: bool,
) -> None:
    """Raise UsageError, before anything changes, if a borrower holds what is not released.

    Inside a group the borrower's release may come later; the group looks for itself. Then pages
    that are in it twice are found here, before it has noted a part of the call. ``whole``: as in
    ``FreeGroup.add``.
    """
    for borrower, count in releases:
        count_name = f"cascade[{borrower.spec.name!r}]"
        check_gaps(borrower, name, ids, page_size, count, count_name)
    if shared.groups:
        shared.groups[0].look(band, ids, page_size, whole)
        for borrower, _ in releases:
            shared.groups[0].look(borrower, ids, page_size, whole=False)
    else:
        released = {borrower.index for borrower, count in releases if count}
        for borrower in shared.borrowers_of(band):
            if borrower.index not in released:
                check_not_held(borrower, name, host_pages(ids, page_size))


def release_first(
    shared: Shared, ids: torch.Tensor, page_size: int, releases: Sequence[Release]
) -> None:
    """Let the borrowers give back their pages of ``ids``: one launch each."""
    for borrower, count in releases:
        if count:
            _take_back(shared, borrower, ids, page_size, count)


def _require_borrowed(band: Band, operation: str) -> None:
    if band.table.lender is None:
        raise UsageError(
            f"{operation}: pool {band.spec.name!r} has ids of its own, for alloc and free"
        )


def _take_back(
    shared: Shared, band: Band, ids: torch.Tensor, page_size: int, page_count: int
) -> None:
    if shared.groups:
        shared.groups[0].add(band, ids, page_size, page_count, whole=False)
    else:
        unbind_tokens(shared, band, ids, page_size, page_count, "release")

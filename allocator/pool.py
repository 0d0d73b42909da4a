"""MultiEndedAllocator, the public face of one pool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .band import Band, more_than_live, no_own_ids
from .borrowing import BorrowCalls, cascaded, check_cascade, release_first
from .compactor import NOTHING
from .debug import check_bound_ids
from .faults import OutOfPages, UsageError
from .geometry import require_count
from .grant import bind_pages, ensure_room
from .hazards import Lease, PageSet
from .layouts import EnvelopeLayout
from .limits import FlushResult, flush_limit
from .shared import Shared
from .tokens import TokenCalls
from .views import page_views


class MultiEndedAllocator(TokenCalls, BorrowCalls):
    """Pages of one pool: virtual ids for the engine, packed physical pages underneath.

    Made by ``Arena``; all calls come from one thread and one stream, or from streams that the
    caller orders. ``pages`` is the pool's view of the arena's buffer, uint8 [num_pages,
    page_bytes], or None if there is none. ``largest_allocation``: pages that one ``alloc`` gets
    from an empty arena, or one ``bind`` beside as many pages of its lender: a larger one can never
    be granted.
    """

    __slots__ = ("_band", "_shared", "largest_allocation", "pages")

    def __init__(
        self, shared: Shared, band: Band, buffer: torch.Tensor | None, largest_allocation: int
    ) -> None:
        self._shared = shared
        self._band = band
        self.largest_allocation = largest_allocation
        self.pages: torch.Tensor | None = None
        if buffer is not None:
            page_bytes, num_pages = band.spec.page_bytes, band.geometry.num_pages
            self.pages = buffer[: num_pages * page_bytes].view(num_pages, page_bytes)

    @property
    def name(self) -> str:
        """The pool's name."""
        return self._band.spec.name

    @property
    def page_bytes(self) -> int:
        """Bytes of a page envelope."""
        return self._band.spec.page_bytes

    @property
    def page_size(self) -> int:
        """Tokens of a page."""
        return self._band.spec.page_size

    @property
    def num_pages(self) -> int:
        """Physical pages on this pool's grid over the buffer, sink included."""
        return self._band.geometry.num_pages

    @property
    def live_pages(self) -> int:
        """Pages bound now."""
        return self._band.live

    def views(
        self, layout: EnvelopeLayout, names: Sequence[str] | None = None
    ) -> dict[int, dict[str, torch.Tensor]]:
        """The parts of every page as typed tensors: ``views(layout)[layer]["k"]``, no copy.

        Each is [num_pages, *shape of the part], indexed by physical page ids, and stays good for
        the arena's life. ``names``: the parts wanted, by default all. Raises UsageError if
        ``layout`` is not that of this pool's pages, if its alignment is not kept, and where the
        arena has no buffer.
        """
        if self.pages is None:
            raise UsageError(f"views: pool {self.name!r} has no pages of its own")
        return page_views(self.pages, self.page_size, layout, names)

    @property
    def virtual_to_physical(self) -> torch.Tensor:
        """int64 [virtual pages + 1] on the device, -1 for an unbound id, row 0 the sink.

        Read only. Rows change at any flush: order a kernel that reads them before the next one.
        """
        return self._band.table.virtual_to_physical

    @property
    def physical_to_virtual(self) -> torch.Tensor:
        """int64 [num_pages] on the device, -1 for a free page, row 0 the sink. Read only."""
        return self._band.table.physical_to_virtual

    def alloc(self, page_count: int) -> torch.Tensor:
        """Hand out ``page_count`` pages: int64 virtual ids [page_count] on the device.

        One launch (two with ``zero_on_alloc``), no copy, no wait, unless a neighbour has to be
        packed first; then exactly what is needed moves. The tensor is the caller's own. Raises
        OutOfPages, with nothing changed, if the live pages leave no room, UsageError for a negative
        or fractional count.
        """
        band, shared = self._band, self._shared
        count = require_count("page_count", page_count)
        ensure_room(shared, band, count, "alloc")
        return bind_pages(shared, band, count)

    def try_alloc(self, page_count: int) -> torch.Tensor | None:
        """``alloc``, or None where that raises OutOfPages."""
        try:
            return self.alloc(page_count)
        except OutOfPages:
            return None

    def free(self, virtual_ids: Any, cascade: Mapping[str, int] | None = None) -> None:
        """Give back the pages of ``virtual_ids``: int32 or int64 [ids] on the device, any stride.

        One launch, no copy, no wait. A host list is accepted and costs its upload. An id that has a
        page in a pool that borrows it is refused, unless ``cascade``, pages by name of such a pool,
        says how many of the ids do: they are released there first, in a launch more. Raises
        UsageError, with nothing changed, for a wrong dtype, device or shape and for more ids than
        there are live pages; in a host list also for an id out of range or twice. An id that only
        the device can know to be wrong (freed before, never allocated, twice) is refused there and
        raised at the next flush that finds holes or at ``arena.check()``; with ``debug=True`` it is
        raised here.
        """
        band, shared = self._band, self._shared
        shared.record.raise_if_stopped()
        if band.table.lender is not None:
            raise no_own_ids(band, "free")
        ids = self._ids(virtual_ids, check=True)
        count = ids.numel()
        releases = cascaded(shared, band, cascade, count) if cascade is not None else ()
        if shared.debug:
            check_bound_ids(band, ids)
            check_cascade(shared, band, "virtual_ids", ids, 1, releases, whole=True)
        if count > band.live:
            raise more_than_live(band, "virtual_ids", count)
        shared.counters.free_calls += 1
        if releases:
            release_first(shared, ids, 1, releases)
        if shared.groups:
            shared.groups[0].add(band, ids, 1, count, whole=True)
        elif count:
            band.unbind(shared.backend.operand(ids), count)

    def flush(
        self,
        urgent: bool = False,
        max_moves: int | None = None,
        max_bytes: int | None = None,
    ) -> FlushResult:
        """Pack this pool: fully, or at most ``max_moves`` pages and ``max_bytes`` bytes.

        ``urgent`` promises full packing, so a limit beside it is a UsageError. With no hole it
        returns at once. Raises UsageError or CorruptState for a fault that came up since the last
        look, before anything moves.
        """
        shared, band = self._shared, self._band
        shared.record.raise_if_stopped()
        limit = flush_limit(urgent, max_moves, max_bytes)
        if band.at_rest:
            return NOTHING
        return shared.compactor.flush([band], limit)[self.name]

    def lease(self, virtual_ids: Any) -> Lease:
        """Pin the pages of ``virtual_ids`` (int32 or int64 [ids]) until the lease is released.

        For an outside reader or writer, such as a KV transfer: the pages are neither moved nor
        reused, also after they are freed. Until the release every flush stops at the highest
        leased page, pages freed in this pool stay pending, and neighbours have the room beyond
        this pool's present span only. A context manager. An id that is not allocated pins nothing
        and is a UsageError at the next flush that finds holes or at ``arena.check()``, with
        ``debug=True`` here. One launch.
        """
        band, shared = self._band, self._shared
        shared.record.raise_if_stopped()
        ids = self._ids(virtual_ids, check=True)
        if shared.debug:
            check_bound_ids(band, ids)
        return band.lease(self.places_of(ids))

    def available(self) -> int:
        """Pages that ``alloc`` would grant now, packing the neighbour if need be.

        While moves are blocked or pages leased: what can be granted without moving what must stay.
        """
        self._shared.record.raise_if_stopped()
        return self._shared.capacity.available(self._band)

    def translate(self, virtual_ids: Any) -> torch.Tensor:
        """Physical page ids of ``virtual_ids`` (int32 or int64 [ids], any stride): int64 [ids].

        An id that is unbound, negative or out of range gives 0, the sink. One launch. The result is
        good until pages move: ``arena.layout_version`` tells.
        """
        ids = self._ids(virtual_ids)
        if not ids.numel():
            return torch.empty(0, dtype=torch.int64, device=self._shared.device)
        backend, table = self._shared.backend, self._band.table
        return backend.translate(table.v2p, backend.operand(ids), self.num_pages)

    @property
    def index(self) -> int:
        """The pool's place among those of its arena."""
        return self._band.index

    def places_of(self, ids: torch.Tensor) -> PageSet:
        """The physical pages of virtual ids, fixed on the device in one launch."""
        return PageSet(self._shared.backend.operand(self.translate(ids)), ids.numel())

    def places_of_tokens(self, ids: torch.Tensor) -> PageSet:
        """The physical pages of token ids, fixed on the device in one launch."""
        places = self._shared.backend.operand(self.translate_tokens(ids))
        return PageSet(places, ids.numel(), self.page_size)


def ids_by_pool(
    name: str, given: Any, pools: Mapping[str, MultiEndedAllocator]
) -> dict[str, torch.Tensor]:
    """``given``, ids by pool name or None, as tensors on the device."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise UsageError(f"{name}: expected a dict of ids by pool name, got {given!r}")
    for pool in given:
        if pool not in pools:
            raise UsageError(f"{name}: no pool {pool!r}, the pools are {list(pools)}")
    return {pool: pools[pool]._ids(ids, f"{name}[{pool!r}]") for pool, ids in given.items()}

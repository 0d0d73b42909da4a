"""One pool's band of pages: its tables, lists and counts, and the steps that change them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kvdefrag.kernels.backend import Backend, Operand
from kvdefrag.kernels.take import Take

from .faults import FaultRecord, UsageError
from .free_pages import HoleList, Ids
from .geometry import BandGeometry, Growth, PoolSpec
from .hazards import BandHazards, Fence, Handle, Lease, PageSet, Pending
from .page_table import PageTable
from .plan import MovePlan

LEASED_SET_PAGES = 1024
"""Room for pages that are freed one by one under the same leases."""


def more_than_live(band: Band, name: str, page_count: int) -> UsageError:
    """What to raise where ``band`` has fewer than ``page_count`` live pages."""
    return UsageError(
        f"{name}: {page_count} pages, but pool {band.spec.name!r} has {band.live} live pages"
    )


def no_own_ids(band: Band, operation: str) -> UsageError:
    """What to raise where ``band`` borrows its ids."""
    return UsageError(
        f"{operation}: pool {band.spec.name!r} borrows its ids from {band.spec.ids_from!r}: "
        f"bind and release give and take pages here"
    )


class Band:
    """The pages ``[0, span)`` by depth: each is live, a hole or pending.

    ``span == live + holes.count + hazards.pending_pages``. ``live``, ``span`` and ``peak_holes``
    are page counts that the host keeps without asking the device.
    """

    __slots__ = (
        "_backend",
        "_record",
        "geometry",
        "hazards",
        "holes",
        "ids",
        "index",
        "live",
        "peak_holes",
        "span",
        "spec",
        "table",
    )

    def __init__(
        self,
        spec: PoolSpec,
        index: int,
        geometry: BandGeometry,
        table: PageTable,
        ids: Ids,
        backend: Backend,
        record: FaultRecord,
    ) -> None:
        self.spec = spec
        self.index = index
        self.geometry = geometry
        self.table = table
        self.holes = HoleList(backend, table.virtual_to_physical.device, geometry.num_pages)
        self.ids = ids
        self.hazards = BandHazards()
        self.live = self.span = self.peak_holes = 0
        self._backend = backend
        self._record = record

    @property
    def at_rest(self) -> bool:
        """Whether a flush has nothing to do here."""
        return self.holes.head == self.holes.end and not self.hazards.pending

    @property
    def held(self) -> int:
        """Pages that an allocation cannot have: live ones, and those pending on a lease."""
        return self.live + self.hazards.leased_pending_pages

    def take(
        self, page_count: int, gap: tuple[int, int], low_first: bool = False
    ) -> tuple[Take, Growth]:
        """Choose ``page_count`` pages, which the caller knows to fit; nothing changes yet.

        ``gap``: the bytes between the bands around this one; ``low_first``: take the lower ones.
        """
        holes, geometry = self.holes, self.geometry
        from_sorted, from_newer = holes.split(page_count)
        step = geometry.step
        if geometry.floats:
            fresh = page_count - from_sorted - from_newer
            growth = geometry.growth(self.span, fresh, *gap, low_first)
            step = step if self.span else 1
        else:
            growth = Growth(geometry.origin + step * self.span, 0, 0)
        take = Take(
            page_count,
            holes.head,
            from_sorted,
            holes.end - from_newer,
            from_newer,
            growth.front_page,
            step,
            *self.ids.chosen(page_count),
            growth.back_page,
            growth.back_count,
        )
        return take, growth

    def took(self, take: Take, growth: Growth) -> None:
        """A launch has handed out what ``take`` chose."""
        self.holes.took(take.head_count, take.newer_count)
        self.ids.took(take.page_count)
        fresh = take.page_count - take.head_count - take.newer_count
        if fresh:
            if self.geometry.floats:
                self.geometry.settle(self.span, growth)
            self.span += fresh
        self.live += take.page_count

    def unbind(self, virtual_ids: Operand, page_count: int, operation: str = "free") -> None:
        """Take back the pages of ``virtual_ids``, ``page_count`` at most ``live``: one launch."""
        table, ids, record = self.table, self.ids, self._record.words

        def launch(pages: Operand, pages_end: int, call_tag: int) -> None:
            self._backend.unbind(
                table.v2p, table.p2v, virtual_ids, pages, pages_end,
                ids.buffer, ids.recycled, record, call_tag, table.holders,
            )  # fmt: skip

        self.take_back(page_count, operation, launch)

    def take_back(
        self, page_count: int, operation: str, launch: Callable[[Operand, int, int], None]
    ) -> None:
        """``launch(pages, pages_end, call_tag)`` takes back ``page_count`` pages, at most ``live``.

        It lists them in ``pages`` from ``pages_end`` on, and their ids behind the free ones. They
        become holes, or with leases in the pool pending pages.
        """
        holes, leases = self.holes, self.hazards.leases if page_count else []
        pages, pages_end = holes.buffer, holes.end
        if leases:
            leased = self._pending_on(leases, page_count)
            pages, pages_end = leased.words, leased.count
        launch(pages, pages_end, self._record.next_call_tag(self.index, operation, page_count))
        self.hazards.free_calls += 1
        if leases:
            leased.listed(page_count)
        else:
            holes.listed(page_count)
        self.ids.listed(page_count)
        self.live -= page_count
        self._note_peak()

    def _pending_on(self, leases: list[Lease], page_count: int) -> PageSet:
        """Where ``page_count`` more pages are listed that wait for ``leases``.

        Frees under the same leases share a set, so that many small ones cost no more later on.
        """
        pending = self.hazards.pending
        if pending and pending[-1].leases == leases:
            page_set = pending[-1].page_set
            if page_set.count + page_count <= page_set.words.shape[0]:
                return page_set
        page_set = PageSet(self._new_words(max(page_count, LEASED_SET_PAGES)), 0)
        pending.append(Pending(page_set, [], list(leases)))
        return page_set

    def packed(
        self, plan: MovePlan, ready: list[Pending], sources: Operand, fences: list[Fence]
    ) -> None:
        """The moves of ``plan`` are on the stream: the frontier retreats.

        The ``ready`` pending pages were holes of the plan. ``sources``, the vacated pages, become
        pending until all ``fences`` are done, if there are any.
        """
        self.span = plan.span_after - plan.first_after
        self.holes.reset(plan.remaining.size)
        self._note_peak()
        if ready:
            self.hazards.drop(ready)
        count = plan.sources.size
        if fences and count:
            pages = self._new_words(count)
            self._backend.assign(pages, sources)
            page_set = PageSet(pages, count)
            page_set.seen = self.geometry.page(plan.sources)
            self.hazards.pending.append(Pending(page_set, list(fences), []))
        self.geometry.advance(plan.first_after)

    def reclaim(self, ended: list[Pending]) -> None:
        """Pending pages become holes: one launch each."""
        self.hazards.drop(ended)
        for pending in ended:
            end, count = self.holes.end, pending.page_set.count
            self._backend.assign(self.holes.buffer[end : end + count], pending.page_set.pages)
            self.holes.listed(count)
        self._note_peak()

    def _note_peak(self) -> None:
        if self.holes.count > self.peak_holes:
            self.peak_holes = self.holes.count

    def lease(self, pages: PageSet) -> Lease:
        """Pin physical ``pages``."""
        lease = Lease(self.spec.name, pages, self._end_lease)
        self.hazards.leases.append(lease)
        return lease

    def _end_lease(self, handle: Any) -> None:
        self.hazards.leases.remove(handle)
        self.end(handle)

    def end(self, handle: Handle) -> None:
        """Pending pages that waited for ``handle`` alone become holes."""
        ended = []
        for pending in self.hazards.pending:
            if handle in pending.leases:
                pending.leases.remove(handle)
                if not pending.leases and not pending.fences:
                    ended.append(pending)
        self.reclaim(ended)

    def _new_words(self, count: int) -> Operand:
        return self._backend.operand(
            torch.empty(count, dtype=torch.int64, device=self.table.virtual_to_physical.device)
        )

    def clear(self) -> None:
        """Every page free, tables and lists as new."""
        self.table.clear()
        self.holes.reset(0)
        self.ids.clear()
        self.hazards.pending = []
        self.live = self.span = self.peak_holes = 0

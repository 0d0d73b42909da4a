"""One pool's band of pages: its tables, lists and counts, and the steps that change them."""

from __future__ import annotations

import torch

from kvdefrag.kernels.backend import Backend, Operand
from kvdefrag.kernels.bind import Take

from .faults import FaultRecord
from .free_pages import HoleList, IdList
from .geometry import BandGeometry, PoolSpec
from .page_table import PageTable
from .plan import MovePlan


class Band:
    """The pages ``[0, span)`` by depth. Each is live or a hole: ``span == live + holes.count``.

    ``live``, ``span`` and ``peak_holes`` are page counts that the host keeps without asking the
    device.
    """

    __slots__ = (
        "_backend",
        "_record",
        "geometry",
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
        backend: Backend,
        record: FaultRecord,
        device: torch.device,
    ) -> None:
        num_pages = geometry.num_pages
        virtual_pages = num_pages - 1 if spec.virtual_pages is None else spec.virtual_pages
        self.spec = spec
        self.index = index
        self.geometry = geometry
        self.table = PageTable(backend, device, num_pages, virtual_pages)
        self.holes = HoleList(backend, device, num_pages)
        self.ids = IdList(backend, device, virtual_pages)
        self.live = self.span = self.peak_holes = 0
        self._backend = backend
        self._record = record

    def bind(self, page_count: int) -> torch.Tensor:
        """Hand out ``page_count`` pages, which the caller knows to fit: int64 ids, one launch."""
        holes, ids, table = self.holes, self.ids, self.table
        from_sorted, from_newer = holes.split(page_count)
        recycled = min(page_count, ids.recycled)
        take = Take(
            page_count,
            holes.head,
            from_sorted,
            holes.end - from_newer,
            from_newer,
            self.geometry.page(self.span),
            self.geometry.step,
            ids.recycled - recycled,
            recycled,
            ids.next_fresh,
        )
        virtual_ids = self._backend.bind(
            table.v2p,
            table.p2v,
            holes.buffer,
            ids.buffer,
            self._record.words,
            take,
            self._record.next_call_tag(self.index),
        )
        holes.took(from_sorted, from_newer)
        ids.took(page_count)
        self.span += page_count - from_sorted - from_newer
        self.live += page_count
        return virtual_ids

    def unbind(self, virtual_ids: Operand, page_count: int) -> None:
        """Take back the pages of ``virtual_ids``, ``page_count`` at most ``live``: one launch."""
        holes, ids, table = self.holes, self.ids, self.table
        self._backend.unbind(
            table.v2p,
            table.p2v,
            virtual_ids,
            holes.buffer,
            holes.end,
            ids.buffer,
            ids.recycled,
            self._record.words,
            self._record.next_call_tag(self.index),
        )
        holes.listed(page_count)
        ids.listed(page_count)
        self.live -= page_count
        if holes.count > self.peak_holes:
            self.peak_holes = holes.count

    def packed(self, plan: MovePlan) -> None:
        """The moves of ``plan`` are on the stream: the frontier retreats."""
        self.span = plan.span_after
        self.holes.reset(plan.remaining.size)

    def clear(self) -> None:
        """Every page free, tables and lists as new."""
        self.table.clear()
        self.holes.reset(0)
        self.ids.reset(0, 1)
        self.live = self.span = self.peak_holes = 0

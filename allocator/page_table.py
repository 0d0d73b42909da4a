"""v2p and p2v of one pool."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvdefrag.kernels.backend import Backend, Operand
from kvdefrag.kernels.translate import MAX_INT32

from .geometry import BandGeometry, PoolSpec, id_count


class PageTable:
    """The two tables of one pool, int64 on the device: -1 is unbound, row 0 is the sink.

    ``virtual_to_physical`` [virtual pages + 1], ``physical_to_virtual`` [pages]. ``v2p`` and
    ``p2v`` are the same memory in the form that the backend's operations take. ``marks`` [virtual
    pages + 1] are those of ``kernels.marks``. ``holders`` [pools, virtual pages + 1]: the v2p of
    every pool that borrows these ids, or None. ``lender``: the tables of the pool whose ids these
    are, if they are borrowed.
    """

    __slots__ = (
        "_serial",
        "holders",
        "lender",
        "marks",
        "p2v",
        "physical_to_virtual",
        "v2p",
        "virtual_to_physical",
    )

    def __init__(
        self,
        backend: Backend,
        num_pages: int,
        virtual_to_physical: torch.Tensor,
        holders: torch.Tensor | None = None,
        lender: PageTable | None = None,
    ) -> None:
        self.virtual_to_physical = virtual_to_physical
        self.physical_to_virtual = virtual_to_physical.new_empty(num_pages)
        self.v2p: Operand = backend.operand(self.virtual_to_physical)
        self.p2v: Operand = backend.operand(self.physical_to_virtual)
        self.marks: Operand = backend.operand(torch.zeros_like(virtual_to_physical))
        self.lender = lender
        self.holders: Operand | None = None if holders is None else backend.operand(holders)
        self._serial = 0
        self.clear()

    def next_serial(self) -> int:
        """A number for a call that marks pages, higher than any before it."""
        if self._serial == MAX_INT32:
            self.marks[:] = 0
            self._serial = 0
        self._serial += 1
        return self._serial

    def clear(self) -> None:
        """Unbind every page."""
        for table in (self.virtual_to_physical, self.physical_to_virtual):
            table.fill_(-1)
            table[:1].fill_(0)


def make_tables(
    specs: Sequence[PoolSpec],
    geometries: Sequence[BandGeometry],
    backend: Backend,
    device: torch.device,
) -> list[PageTable]:
    """The tables of all pools of an arena; v2p of a pool lies before those of its borrowers."""
    page_counts = {
        spec.name: geometry.num_pages for spec, geometry in zip(specs, geometries, strict=True)
    }
    tables = {}
    for spec in specs:
        if spec.ids_from is not None:
            continue
        num_pages = page_counts[spec.name]
        borrowers = [each.name for each in specs if each.ids_from == spec.name]
        shape = (1 + len(borrowers), id_count(spec, num_pages) + 1)
        rows = torch.empty(shape, dtype=torch.int64, device=device)
        lender = PageTable(backend, num_pages, rows[0], rows[1:] if borrowers else None)
        tables[spec.name] = lender
        for name, row in zip(borrowers, rows[1:], strict=True):
            tables[name] = PageTable(backend, page_counts[name], row, lender=lender)
    return [tables[spec.name] for spec in specs]

"""v2p and p2v of one pool."""

from __future__ import annotations

import torch

from kvdefrag.kernels.backend import Backend, Operand
from kvdefrag.kernels.translate import MAX_INT32


class PageTable:
    """The two tables of one pool, int64 on the device: -1 is unbound, row 0 is the sink.

    ``virtual_to_physical`` [virtual pages + 1], ``physical_to_virtual`` [pages]. ``v2p`` and
    ``p2v`` are the same memory in the form that the backend's operations take. ``marks`` [virtual
    pages + 1] are those of ``kernels.token_free``.
    """

    __slots__ = ("_serial", "marks", "p2v", "physical_to_virtual", "v2p", "virtual_to_physical")

    def __init__(
        self, backend: Backend, device: torch.device, num_pages: int, virtual_pages: int
    ) -> None:
        self.virtual_to_physical = torch.empty(virtual_pages + 1, dtype=torch.int64, device=device)
        self.physical_to_virtual = torch.empty(num_pages, dtype=torch.int64, device=device)
        self.v2p: Operand = backend.operand(self.virtual_to_physical)
        self.p2v: Operand = backend.operand(self.physical_to_virtual)
        marks = torch.zeros(virtual_pages + 1, dtype=torch.int64, device=device)
        self.marks: Operand = backend.operand(marks)
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

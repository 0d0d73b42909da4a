"""What is kept beside one pool of SGLang's: operands of its tables, a fault record, a move batch.

Nothing of SGLang's is imported here: its allocator is an object with the attributes that are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from kvdefrag.kernels.backend import Backend, Operand, choose_backend
from kvdefrag.kernels.host import all_below
from kvdefrag.kernels.launch import Words

from .faults import FaultRecord
from .geometry import BandGeometry, PoolSpec
from .prewarm import stopped_record
from .snapshot import SnapshotReader
from .survey import check_hole_list

STAGED_PAGES = 4096
"""Ids for which pinned memory is made up front; it grows with the longest list seen."""

COUNTED_SPAN = 16
"""Up to this many pages a hole, holes are sorted by marking a flag each: no comparison, and a hole
that is listed twice shows in the count."""


class Envelopes(NamedTuple):
    """The bytes of a pool whose pages are contiguous envelopes from byte 0 of ``buffer`` on."""

    buffer: torch.Tensor
    page_bytes: int


class Moved(NamedTuple):
    """A move batch on the device, int64 each, in memory of its own.

    ``sources[i]`` went to ``targets[i]`` and belongs to ``virtual_ids[i]``. ``list_with_sources``:
    the page ids uploaded beside them, and then the sources.
    """

    sources: torch.Tensor
    targets: torch.Tensor
    virtual_ids: torch.Tensor
    list_with_sources: Operand


class EnginePool:
    """One end pool of SGLang's, as ``plan_moves`` and the kernels take it.

    ``launched``: the forward that SGLang has in flight, and the physical token ids that it writes,
    fixed on the device when it was launched, so that a page freed afterwards is still known.
    ``no_pages``: an empty list of ids.
    """

    __slots__ = (
        "_copy_operands", "_p2v", "_reader", "_tables", "_v2p", "backend", "device", "geometry",
        "launched", "name", "no_pages", "record",
    )  # fmt: skip

    def __init__(self, allocator: Any, envelopes: Envelopes | None, backend: str = "auto") -> None:
        v2p, p2v = allocator.virtual_to_physical, allocator.physical_to_virtual
        self.device: torch.device = v2p.device
        self.backend: Backend = choose_backend(backend, self.device)
        self.name: str = allocator.sub_pool_name
        page_bytes: int = allocator.entry_bytes_per_page
        self.geometry = BandGeometry(
            PoolSpec(self.name, page_bytes, grows=allocator.grow_direction),
            allocator.num_pages * page_bytes,
            allocator.min_page_index * page_bytes,
        )
        self.record = FaultRecord(self.backend, self.device, [self.name])
        self._reader = SnapshotReader(self.backend, self.record, STAGED_PAGES)
        self._tables = (v2p, p2v, allocator.num_virtual_ids)
        # The rows behind these are sentinels, or out of use since the pool was resized.
        self._v2p: Operand = self.backend.operand(v2p[: allocator.num_virtual_ids])
        self._p2v: Operand = self.backend.operand(p2v[: allocator.num_pages])
        self.no_pages = torch.empty(0, dtype=torch.int64, device=self.device)
        self._copy_operands: tuple[Operand, int] | None = None
        if envelopes is not None:
            self.backend.check_page_bytes(*envelopes)
            self._copy_operands = (self.backend.operand(envelopes.buffer), envelopes.page_bytes)
        self.launched: tuple[Any, torch.Tensor] | None = None

    def serves(self, allocator: Any) -> bool:
        """Whether the tables of ``allocator`` are still those that the operands view."""
        v2p, p2v, num_virtual_ids = self._tables
        return (
            v2p is allocator.virtual_to_physical
            and p2v is allocator.physical_to_virtual
            and num_virtual_ids == allocator.num_virtual_ids
            and self.geometry.num_pages == allocator.num_pages
        )

    @property
    def copies(self) -> bool:
        """Whether ``move`` copies the pages too; if not, the engine's own copy has to follow."""
        return self._copy_operands is not None

    def snapshot(self, lists: Sequence[torch.Tensor]) -> list[Words]:
        """Bring int64 ``lists`` and the fault record to the host: one launch, one copy, one wait.

        What it returns may be written and is good until the next snapshot. Raises CorruptState for
        a fault of an earlier move.
        """
        self.record.raise_if_stopped()
        parts = [self.backend.operand(each) for each in lists]
        words, found = self._reader.read(parts, [each.numel() for each in lists])
        if self.record.holds_fault(words):
            fault = self.record.corrupt_fault(words)
            raise self.record.stop([str(fault)], fault)
        return found

    def holes(self, pages: Words, span: int) -> Words:
        """The ascending depths of a hole list, which is used up; CorruptState if it is unfit."""
        depths = self.geometry.into_depths(pages)
        if depths.size > 1:
            if span <= COUNTED_SPAN * depths.size:
                counted = _sort_by_counting_host(depths, span)
                if counted.size == depths.size:
                    return counted
            depths.sort()
        try:
            check_hole_list(self.name, self.geometry, depths, span)
        except ValueError as finding:
            raise self.record.stop([str(finding)]) from None
        return depths

    def move(self, sources: Words, targets: Words, holes: Words) -> Moved:
        """Move the pages at depths ``sources`` to ``targets``, and upload the pages at ``holes``.

        ``holes`` ascending. One upload, then one launch that validates, and one that copies and
        rebinds or, where the pages are no envelopes, rebinds alone. With a bad pair nothing moves:
        on the CPU CorruptState is raised here, elsewhere by the next ``snapshot``.
        """
        moves = sources.size
        list_end = moves + holes.size
        sent = list_end + moves
        pinned = None
        words: Operand
        if self.backend.name == "host":
            words = staged = np.empty(sent + moves, np.int64)
        else:
            # Fresh each time: torch gives pinned memory out again once the copy is done.
            on_gpu = self.device.type == "cuda"
            pinned = torch.empty(sent, dtype=torch.int64, device="cpu", pin_memory=on_gpu)
            staged = pinned.numpy()
            words = torch.empty(sent + moves, dtype=torch.int64, device=self.device)
        self.geometry.write_pages(targets, staged[:moves])
        self.geometry.write_pages(sources, staged[list_end:sent])
        if holes.size:
            self.geometry.write_pages_ascending(holes, staged[moves:list_end])
        if pinned is not None:
            words[:sent].copy_(pinned, non_blocking=True)
        self.backend.host_to_device_copies += 1
        source_pages, target_pages, owners = words[list_end:sent], words[:moves], words[sent:]
        if moves:
            self._move_batch(source_pages, target_pages, owners)
        tensor = self.backend.tensor
        return Moved(tensor(source_pages), tensor(target_pages), tensor(owners), words[moves:sent])

    def _move_batch(self, sources: Operand, targets: Operand, virtual_ids: Operand) -> None:
        batch = (self._v2p, self._p2v, sources, targets, virtual_ids, self.record.words)
        tag = self.record.next_call_tag(0, "move", sources.shape[0])
        self.backend.gather_virtual(*batch, tag)
        self.record.raise_if_stopped()
        self._copy_and_rebind(batch)

    def _copy_and_rebind(self, batch: tuple[Operand, ...]) -> None:
        if self._copy_operands is None:
            self.backend.rebind(*batch)
        else:
            self.backend.move_pages(*self._copy_operands, *batch)

    def prewarm(self) -> None:
        """Launch every kernel once, with a record that is stopped, so that nothing changes."""
        record = stopped_record(self.backend, self.device)
        rows = torch.zeros(3, 1, dtype=torch.int64, device=self.device)
        batch = (self._v2p, self._p2v, *(self.backend.operand(row) for row in rows), record)
        self.backend.gather_virtual(*batch, 0)
        self._copy_and_rebind(batch)


def ascending_depths_host(pool: EnginePool, pages: Words, span: int) -> Words:
    """The distinct depths of ``pages`` inside a band of ``span`` pages."""
    depths = np.unique(pool.geometry.depth(pages))
    return depths[depths.searchsorted(0) : depths.searchsorted(span)]


def _sort_by_counting_host(depths: Words, span: int) -> Words:
    """``depths`` ascending; fewer if one is twice there or outside a band of ``span`` pages."""
    if not all_below(depths, span):
        return depths[:0]
    is_hole = np.zeros(span, np.bool_)
    is_hole[depths] = True
    return is_hole.nonzero()[0]

"""One pool of a baseline: its tables and lists as the field keeps them, a policy for packing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter_ns
from typing import NamedTuple

import torch

from kvdefrag import OutOfPages, PoolSpec
from kvdefrag.allocator.geometry import BandGeometry


@dataclass
class Tally:
    """The running counts of one baseline arena, as ``ArenaStats`` defines them."""

    alloc_calls: int = 0
    free_calls: int = 0
    flush_calls: int = 0
    flushes_with_moves: int = 0
    flush_host_ns: int = 0
    moves: int = 0
    bytes_moved: int = 0
    device_to_host_copies: int = 0
    layout_version: int = 0


class Policy(NamedTuple):
    """How ``pack`` makes room (it returns the pages moved), and whether that fills every hole.

    ``at_free``: it runs at every free.
    """

    pack: Callable[[BaselinePool], int]
    fills_holes: bool = True
    at_free: bool = False


class BaselinePool:
    """One pool: tables, lists and pages as torch tensors, their lengths known on the host.

    ``holes``: physical pages, int64. ``pages``: uint8 [num_pages, page_bytes], or None where the
    copy is left out. ``facing``: the pool that shares the buffer, if one does.
    """

    def __init__(
        self,
        spec: PoolSpec,
        geometry: BandGeometry,
        policy: Policy,
        tally: Tally,
        device: torch.device,
        buffer: torch.Tensor | None,
    ) -> None:
        self.spec, self.geometry, self.policy, self.tally = spec, geometry, policy, tally
        id_count = spec.virtual_pages or geometry.num_pages - 1
        self.virtual_to_physical = _table(id_count + 1, device)
        self.physical_to_virtual = _table(geometry.num_pages, device)
        self.holes = torch.empty(0, dtype=torch.int64, device=device)
        self.free_ids = torch.arange(1, id_count + 1, device=device)
        self.span = self.peak_holes = 0
        self.pages: torch.Tensor | None = None
        if buffer is not None:
            size = geometry.num_pages * spec.page_bytes
            self.pages = buffer[:size].view(geometry.num_pages, spec.page_bytes)
        self.facing: BaselinePool | None = None

    @property
    def live_pages(self) -> int:
        """Pages bound now."""
        return self.span - len(self.holes)

    def span_with(self, page_count: int) -> int:
        """The span, in pages, that the policy can keep to with ``page_count`` pages more."""
        if self.policy.fills_holes:
            return self.live_pages + page_count
        return self.span + max(0, page_count - len(self.holes))

    def span_limit(self, facing_span: int) -> int:
        """The longest span beside a facing pool of ``facing_span`` pages."""
        geometry, facing = self.geometry, self.facing
        low = geometry.first_page * geometry.page_bytes
        high = geometry.num_pages * geometry.page_bytes
        if facing is not None and facing_span:
            bottom, top = facing.geometry.edges(facing_span)
            if facing.geometry.rank > geometry.rank:
                high = bottom
            else:
                low = top
        return geometry.pages_between(low, high)

    def available(self, facing_asked: int = 0) -> int:
        """Pages that could be granted, the facing pool granted ``facing_asked`` as well."""
        limit = self.span_limit(self.facing.span_with(facing_asked) if self.facing else 0)
        room = limit - self.span_with(0)
        if not self.policy.fills_holes:
            room += len(self.holes)
        return max(0, min(len(self.free_ids), room))

    def alloc(self, page_count: int) -> torch.Tensor:
        """int64 virtual ids [page_count]: holes first, then pages from the frontier."""
        self.tally.alloc_calls += 1
        return self.grant(page_count)

    def grant(self, page_count: int) -> torch.Tensor:
        """``alloc``, not counted: packs the facing pool if that is in the way."""
        facing = self.facing
        if facing and not self.policy.fills_holes and page_count > self.available():
            facing.flush()
        available = self.available()
        if page_count > available:
            raise OutOfPages(self.spec.name, page_count, available)
        fresh = max(0, page_count - len(self.holes))
        if fresh and facing and self.span + fresh > self.span_limit(facing.span):
            facing.flush()
        return self._bind(page_count, fresh)

    def try_alloc(self, page_count: int) -> torch.Tensor | None:
        """``alloc``, or None where that raises ``OutOfPages``."""
        try:
            return self.alloc(page_count)
        except OutOfPages:
            return None

    def free(self, virtual_ids: torch.Tensor) -> None:
        """Unbind int64 ids [ids] and list their pages."""
        self.tally.free_calls += 1
        pages = self.virtual_to_physical[virtual_ids]
        self.virtual_to_physical[virtual_ids] = -1
        self.physical_to_virtual[pages] = -1
        self.holes = torch.cat([self.holes, pages])
        self.free_ids = torch.cat([self.free_ids, virtual_ids])
        self.peak_holes = max(self.peak_holes, len(self.holes))
        if self.policy.at_free:
            self.flush()

    def flush(self) -> int:
        """Make what room the policy can; returns the number of moved pages."""
        if not len(self.holes):
            return 0
        started = perf_counter_ns()
        moves = self.policy.pack(self)
        tally = self.tally
        tally.flush_calls += 1
        tally.moves += moves
        tally.bytes_moved += moves * self.spec.page_bytes
        if moves:
            tally.flushes_with_moves += 1
            tally.layout_version += 1
        tally.flush_host_ns += perf_counter_ns() - started
        return moves

    def translate(self, virtual_ids: torch.Tensor) -> torch.Tensor:
        """Physical pages of ``virtual_ids``; 0 for an unbound one."""
        return self.virtual_to_physical[virtual_ids].clamp(min=0)

    def at_depth(self, depths: torch.Tensor) -> torch.Tensor:
        """Physical pages at ``depths``, or depths of physical pages on a band that grows down."""
        return self.geometry.origin + self.geometry.step * depths

    def copy_pages(self, sources: torch.Tensor, targets: torch.Tensor) -> None:
        """Copy whole pages by their physical ids, int64 [moves] each."""
        if self.pages is not None:
            copy_rows(self.pages, sources, targets)

    def _bind(self, page_count: int, fresh: int) -> torch.Tensor:
        device = self.holes.device
        beyond = self.at_depth(torch.arange(self.span, self.span + fresh, device=device))
        pages = torch.cat([self.holes[: page_count - fresh], beyond])
        ids = self.free_ids[:page_count].clone()
        self.holes = self.holes[page_count - fresh :]
        self.free_ids = self.free_ids[page_count:]
        self.span += fresh
        self.virtual_to_physical[ids] = pages
        self.physical_to_virtual[pages] = ids
        return ids


def copy_rows(pages: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor) -> None:
    """Copy rows of ``pages``, uint8 [num_pages, page_bytes], as fast as torch's operators do."""
    if pages.shape[1] % 8 == 0 and pages.storage_offset() % 8 == 0:
        pages = pages.view(torch.int64)  # torch goes through bytes one at a time
    pages.index_copy_(0, targets, pages.index_select(0, sources))


def _table(rows: int, device: torch.device) -> torch.Tensor:
    table = torch.full((rows,), -1, dtype=torch.int64, device=device)
    table[:1] = 0
    return table

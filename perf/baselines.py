"""What an engine would otherwise do: allocators to measure against, as correct as ours."""

from __future__ import annotations

import torch


class PageByPagePool:
    """One pool that grows up, packed page by page, with one scalar read for every moved page.

    The state of the field before the reads were batched: a free list that is concatenated at every
    free, sorted and listed at every flush, a Python walk from both ends, and
    ``physical_to_virtual[page].item()`` for each page that moves. Pages are not copied.
    """

    def __init__(self, num_pages: int, device: torch.device | str = "cpu") -> None:
        self.virtual_to_physical = torch.full((num_pages,), -1, dtype=torch.int64, device=device)
        self.physical_to_virtual = self.virtual_to_physical.clone()
        self.holes = torch.empty(0, dtype=torch.int64, device=device)
        self.free_ids = torch.arange(1, num_pages, device=device)
        self.frontier = 1

    def alloc(self, page_count: int) -> torch.Tensor:
        """int64 virtual ids [page_count]: holes first, then pages from the frontier."""
        from_holes = min(page_count, len(self.holes))
        fresh = page_count - from_holes
        if page_count > len(self.free_ids):
            raise MemoryError(f"asked for {page_count} pages, {len(self.free_ids)} ids are free")
        beyond = torch.arange(self.frontier, self.frontier + fresh, device=self.holes.device)
        pages = torch.cat([self.holes[:from_holes], beyond])
        ids = self.free_ids[:page_count].clone()
        self.holes = self.holes[from_holes:]
        self.free_ids = self.free_ids[page_count:]
        self.frontier += fresh
        self.virtual_to_physical[ids] = pages
        self.physical_to_virtual[pages] = ids
        return ids

    def free(self, virtual_ids: torch.Tensor) -> None:
        """Unbind int64 ids [ids] and list their pages."""
        pages = self.virtual_to_physical[virtual_ids]
        self.virtual_to_physical[virtual_ids] = -1
        self.physical_to_virtual[pages] = -1
        self.holes = torch.cat([self.holes, pages])
        self.free_ids = torch.cat([self.free_ids, virtual_ids])

    def flush(self) -> int:
        """Pack fully; returns the number of moved pages."""
        holes: list[int] = self.holes.sort().values.tolist()
        is_hole = set(holes)
        moves = 0
        top = self.frontier - 1
        for target in holes:
            while top in is_hole:
                top -= 1
            if top <= target:
                break
            self._move(top, target)
            moves += 1
            top -= 1
        self.frontier -= len(holes)
        self.holes = self.holes[:0]
        return moves

    def _move(self, source: int, target: int) -> None:
        virtual_id = int(self.physical_to_virtual[source].item())
        self.virtual_to_physical[virtual_id] = target
        self.physical_to_virtual[target] = virtual_id
        self.physical_to_virtual[source] = -1

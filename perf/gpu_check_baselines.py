"""What a whole flush is timed against: pools that pack by other means, and copy their pages."""

from __future__ import annotations

import torch

from .baselines import PageByPagePool
from .gpu_check_kernels import copy_plain


class CopyingPageByPage(PageByPagePool):
    """Page by page, with one scalar read and one copy for every page that moves.

    ``pages``: int64 [num_pages, words].
    """

    def __init__(self, pages: torch.Tensor) -> None:
        super().__init__(pages.shape[0], pages.device)
        self.pages = pages

    def _move(self, source: int, target: int) -> None:
        super()._move(source, target)
        self.pages[target].copy_(self.pages[source])


class BatchedLookupPool(PageByPagePool):
    """One gather for all moves, an assertion on the device, index writes; the walk is Python.

    The state of the field after the reads were batched: the sorted hole list goes to the host, a
    loop picks the pairs, two lists go up, and the straightforward kernel copies.
    ``pages``: int64 [num_pages, words], contiguous.
    """

    def __init__(self, pages: torch.Tensor) -> None:
        super().__init__(pages.shape[0], pages.device)
        self.pages = pages

    def flush(self) -> int:
        """Pack fully; returns the number of moved pages."""
        holes: list[int] = self.holes.sort().values.tolist()
        is_hole = set(holes)
        source_list, target_list = [], []
        top = self.frontier - 1
        for target in holes:
            while top in is_hole:
                top -= 1
            if top <= target:
                break
            source_list.append(top)
            target_list.append(target)
            top -= 1
        if source_list:
            self._move_all(source_list, target_list)
        self.frontier -= len(holes)
        self.holes = self.holes[:0]
        return len(source_list)

    def _move_all(self, source_list: list[int], target_list: list[int]) -> None:
        sources = torch.tensor(source_list, device=self.pages.device)
        targets = torch.tensor(target_list, device=self.pages.device)
        virtual_ids = self.physical_to_virtual[sources]
        torch._assert_async((virtual_ids >= 0).all())
        copy_plain(self.pages.view(-1), sources, targets, 8 * self.pages.shape[1])
        self.virtual_to_physical[virtual_ids] = targets
        self.physical_to_virtual[targets] = virtual_ids
        self.physical_to_virtual.index_fill_(0, sources, -1)

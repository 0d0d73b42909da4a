"""What a whole flush is timed against: pools that pack by other means, and copy their pages."""

from __future__ import annotations

import torch

from .baseline_pool import BaselinePool
from .baselines import POLICIES, single_pool
from .gpu_check_kernels import copy_plain


class PlainCopyPool(BaselinePool):
    """Copies a batch with the straightforward kernel; pages are a multiple of 8 bytes."""

    def copy_pages(self, sources: torch.Tensor, targets: torch.Tensor) -> None:
        """One launch."""
        assert self.pages is not None
        copy_plain(self.pages.view(-1), sources, targets, self.spec.page_bytes)


def pool_over(
    pages: torch.Tensor, policy: str, kind: type[BaselinePool] = BaselinePool
) -> BaselinePool:
    """The baseline called ``policy`` over ``pages``, int64 [num_pages, words], contiguous."""
    num_pages, words = pages.shape
    buffer = pages.view(-1).view(torch.uint8)
    return single_pool(POLICIES[policy], num_pages, 8 * words, pages.device, buffer, kind)


def copying_page_by_page(pages: torch.Tensor) -> BaselinePool:
    """One scalar read and one copy for every page that moves."""
    return pool_over(pages, "scalar")


def batched_look_up(pages: torch.Tensor) -> BaselinePool:
    """One gather for all moves, and the straightforward kernel copies."""
    return pool_over(pages, "batched", PlainCopyPool)

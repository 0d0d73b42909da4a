"""For tests: fences that end by hand, and byte patterns that show where every page went."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .pool import MultiEndedAllocator


class ManualFence:
    """The fence of a forward that a test ends with ``finish``.

    ``work`` stands for what the forward still has to do, such as writing its pages. It runs once:
    in ``finish``, or before that in ``wait``, since what comes next on a stream that waits comes
    after it. ``query`` is False until ``finish``. ``waits`` counts the calls of ``wait``.
    """

    def __init__(self, work: Callable[[], None] | None = None) -> None:
        self.waits = 0
        self._work = work
        self._done = False

    def query(self) -> bool:
        """Whether ``finish`` was called."""
        return self._done

    def wait(self) -> None:
        """Let what comes next happen after ``work``."""
        self.waits += 1
        self._run()

    def finish(self) -> None:
        """End the forward."""
        self._run()
        self._done = True

    def _run(self) -> None:
        work, self._work = self._work, None
        if work is not None:
            work()


def page_pattern(virtual_ids: torch.Tensor, page_bytes: int, salt: int = 0) -> torch.Tensor:
    """A distinct byte pattern for every id: uint8 [ids, page_bytes] on the ids' device.

    Each byte depends on the id, its place in the page and ``salt``, so that a page that moved to
    the wrong place, or only in part, differs.
    """
    place = torch.arange(page_bytes, device=virtual_ids.device)
    mixed = (virtual_ids.to(torch.int64)[:, None] * 2654435761 + salt * 97) ^ (place * 40503 + 1)
    return ((mixed ^ (mixed >> 15)) & 0xFF).to(torch.uint8)


def stamp_pages(pool: MultiEndedAllocator, virtual_ids: torch.Tensor, salt: int = 0) -> None:
    """Write the pattern of every id into its page."""
    if pool.pages is None:
        raise ValueError(f"pool: {pool.name!r} has no pages of its own")
    pool.pages[pool.translate(virtual_ids)] = page_pattern(virtual_ids, pool.page_bytes, salt)


def wrong_pages(pool: MultiEndedAllocator, virtual_ids: torch.Tensor, salt: int = 0) -> list[str]:
    """Every id whose page does not hold its pattern, with the first wrong byte."""
    if pool.pages is None:
        raise ValueError(f"pool: {pool.name!r} has no pages of its own")
    found = pool.pages[pool.translate(virtual_ids)].cpu()
    wanted = page_pattern(virtual_ids, pool.page_bytes, salt).cpu()
    differs = found != wanted
    wrong = []
    for row in differs.any(dim=1).nonzero().flatten().tolist():
        byte = int(differs[row].nonzero()[0])
        wrong.append(
            f"id {int(virtual_ids[row])}: byte {byte} is {int(found[row, byte])}, "
            f"not {int(wanted[row, byte])}"
        )
    return wrong

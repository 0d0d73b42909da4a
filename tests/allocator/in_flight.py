"""The forwards of a world that have been launched and have not ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from kvdefrag.allocator.testing import ManualFence

from .forwards import Access, Forward

if TYPE_CHECKING:
    from .world import World

Ids = Mapping[str, Sequence[int]]
"""Virtual ids by pool name."""


class InFlight:
    """The forwards of a world. `unfinished`: fences that have not ended. `unrun`: by launch.

    `outstanding`: fences that have not ended, and that no stream has been made to wait for.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.unfinished: list[ManualFence] = []
        self.outstanding: list[ManualFence] = []
        self.unrun: list[Forward] = []

    def new_fence(self) -> ManualFence:
        """A fence to launch forwards with."""
        fence = ManualFence(lambda: self._ended(fence))
        self.unfinished.append(fence)
        self.outstanding.append(fence)
        return fence

    def begin(
        self, reads: Ids, writes: Ids, as_tokens: bool = False, fence: ManualFence | None = None
    ) -> ManualFence:
        """Launch a forward."""
        world = self._world
        fence = fence or self.new_fence()
        forward = Forward(fence, self.accesses(reads), self.accesses(writes, fresh=True))
        given = {name: self._given(name, list(ids), as_tokens) for name, ids in writes.items()}
        passed: Callable[..., None] = world.arena.forward_launched
        passed(fence, **{"token_writes" if as_tokens else "writes": given})
        self.unrun.append(forward)
        for access in forward.writes:
            world.written.keep((access.name, access.place), [fence])
        world.counts["forward"] += 1
        return fence

    def _given(self, name: str, ids: list[int], as_tokens: bool) -> torch.Tensor:
        page_size = self._world.spec(name).page_size if as_tokens else 1
        tokens = [virtual * page_size + virtual % page_size for virtual in ids]
        return torch.tensor([*tokens, 0], dtype=torch.int64)

    def accesses(self, ids_by_pool: Ids, fresh: bool = False) -> list[Access]:
        """Live pages as they are now, with a `fresh` stamp for those to be written."""
        world = self._world
        found = []
        for name, ids in ids_by_pool.items():
            places = world.arena[name].translate(torch.tensor(ids, dtype=torch.int64)).tolist()
            for virtual, place in zip(ids, places, strict=True):
                page = world.live[name][virtual]
                if fresh:
                    page.after = world.new_stamp()
                found.append(Access(name, place, page, page.after))
        return found

    def finish(self, index: int) -> None:
        """End a fence."""
        self.unfinished.pop(index).finish()

    def _ended(self, fence: ManualFence) -> None:
        """The stream is behind `fence`, so behind every forward launched before its last one."""
        mine = [number for number, forward in enumerate(self.unrun) if forward.fence is fence]
        count = mine[-1] + 1 if mine else 0
        for _ in range(count):
            forward = self.unrun.pop(0)
            forward.run(self._world.bytes_of)
            if forward.writes:
                self._write_fresh()
        self.outstanding.remove(fence)
        self._world.written.ended(fence)
        self._world.vacated.ended(fence)

    def _write_fresh(self) -> None:
        """Write the pages that had to wait for a forward of the owner before."""
        world, stale = self._world, self.stale_writes()
        for name, pages in world.live.items():
            for virtual, page in pages.items():
                if page.stamp is None:
                    place = world.places(name, [virtual])[0]
                    if (name, place) not in stale:
                        page.stamp = page.first
                        world.bytes_of[name].write([place], [page.stamp])

    def stale_writes(self) -> set[tuple[str, int]]:
        """Places that forwards which have not run will write for owners who have freed them."""
        accesses = (access for forward in self.unrun for access in forward.writes)
        return {(access.name, access.place) for access in accesses if not access.page.live}

    def pages(self) -> set[int]:
        """The identities of the pages that forwards which have not run read or write."""
        return {id(a.page) for forward in self.unrun for a in (*forward.reads, *forward.writes)}

"""The pools of one baseline over one buffer, with the face that a replay asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from kvdefrag import CorruptState, OutOfPages, PoolSpec
from kvdefrag.allocator.geometry import place_bands

from .baseline_pool import BaselinePool, Policy, Tally


@dataclass(frozen=True)
class BaselinePoolStats:
    """Page counts of one pool, defined in ``PoolStats``."""

    live_pages: int
    hole_pages: int
    span_pages: int
    peak_hole_pages: int


@dataclass(frozen=True)
class BaselineStats:
    """What one baseline has done so far, defined in ``ArenaStats``."""

    alloc_calls: int
    free_calls: int
    flush_calls: int
    flushes_with_moves: int
    flush_host_ns: int
    moves: int
    bytes_moved: int
    device_to_host_copies: int
    layout_version: int
    pools: Mapping[str, BaselinePoolStats]


class BaselineArena:
    """One or two pools in ``buffer``, uint8 [total_bytes].

    ``split``: the share of the bytes that the first pool has for itself; None, and the pools share
    the buffer and grow towards each other. Raises UsageError where a pool cannot hold a page.
    """

    def __init__(
        self,
        buffer: torch.Tensor,
        specs: Sequence[PoolSpec],
        policy: Policy,
        split: float | None = None,
    ) -> None:
        self.device = buffer.device
        self._tally = Tally()
        if split is None or len(specs) == 1:
            geometries = place_bands(specs, buffer.numel())
            parts = [buffer] * len(specs)
        else:
            page_bytes = specs[0].page_bytes
            edge = int(buffer.numel() * split) // page_bytes * page_bytes
            parts = [buffer[:edge], buffer[edge:]]
            geometries = [
                place_bands([spec], max(1, part.numel()))[0]
                for spec, part in zip(specs, parts, strict=True)
            ]
        self.pools = {
            spec.name: BaselinePool(spec, geometry, policy, self._tally, self.device, part)
            for spec, geometry, part in zip(specs, geometries, parts, strict=True)
        }
        if split is None and len(specs) == 2:
            first, second = self.pools.values()
            first.facing, second.facing = second, first

    def __getitem__(self, name: str) -> BaselinePool:
        """The pool called ``name``."""
        return self.pools[name]

    @property
    def layout_version(self) -> int:
        """Changes whenever pages have moved."""
        return self._tally.layout_version

    def fits(self, page_counts: Mapping[str, int]) -> bool:
        """Whether ``page_counts``, pages by pool name, would be granted together.

        A policy that leaves holes gives back those at the frontiers if that is what it takes.
        """
        if self._fits_now(page_counts):
            return True
        if all(pool.policy.fills_holes or pool.facing is None for pool in self.pools.values()):
            return False
        for pool in self.pools.values():
            pool.flush()
        return self._fits_now(page_counts)

    def alloc_many(self, page_counts: Mapping[str, int]) -> dict[str, torch.Tensor]:
        """Virtual ids by pool name, all or nothing; raises OutOfPages."""
        self._tally.alloc_calls += 1
        if not self.fits(page_counts):
            name, asked = next(iter(page_counts.items()))
            raise OutOfPages(name, asked, self[name].available())
        return {name: self[name].grant(count) for name, count in page_counts.items()}

    def prewarm(self) -> float:
        """Nothing is compiled."""
        return 0.0

    def check(self, deep: bool = False) -> None:
        """Raise CorruptState where tables, lists and counts of a pool disagree."""
        if not deep:
            return
        found = [finding for pool in self.pools.values() for finding in violations(pool)]
        if found:
            raise CorruptState(found)

    def stats(self) -> BaselineStats:
        """What happened so far. Reads nothing from the device."""
        pools = {
            name: BaselinePoolStats(pool.live_pages, len(pool.holes), pool.span, pool.peak_holes)
            for name, pool in self.pools.items()
        }
        return BaselineStats(**vars(self._tally), pools=pools)

    def _fits_now(self, page_counts: Mapping[str, int]) -> bool:
        for name, count in page_counts.items():
            pool = self.pools[name]
            facing_asked = page_counts.get(pool.facing.spec.name, 0) if pool.facing else 0
            if count and count > pool.available(facing_asked):
                return False
        return True


def violations(pool: BaselinePool) -> list[str]:
    """What is wrong with the tables, lists and counts of a pool: the first finding, or none."""
    name, v2p, p2v = pool.spec.name, pool.virtual_to_physical, pool.physical_to_virtual
    ids = (v2p[1:] >= 0).nonzero().flatten() + 1
    if len(ids) != pool.live_pages or len(ids) != int((p2v > 0).sum()):
        return [f"pool {name!r}: {len(ids)} ids are bound, {pool.live_pages} pages are live"]
    if not torch.equal(p2v[v2p[ids]], ids):
        return [f"pool {name!r}: the tables are not inverse to each other"]
    depths = pool.geometry.step * (torch.cat([v2p[ids], pool.holes]) - pool.geometry.origin)
    if not torch.equal(depths.sort().values, torch.arange(pool.span, device=depths.device)):
        return [f"pool {name!r}: live pages and holes do not fill the band"]
    free = torch.cat([ids, pool.free_ids]).sort().values
    if not torch.equal(free, torch.arange(1, len(v2p), device=free.device)):
        return [f"pool {name!r}: an id is neither bound nor free, or is both"]
    return []

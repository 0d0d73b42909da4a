"""What an engine would otherwise do: pools to measure against, as correct as ours.

All of them keep the lists of the field: ids and holes are tensors that are cut at every allocation
and concatenated at every free. They differ in how, when and whether they pack:

- scalar: a Python walk over the sorted hole list, and for every moved page one
  ``physical_to_virtual[page].item()`` and one copy. The state of the field before the reads were
  batched.
- batched: the same walk, then one gather, an assertion on the device and index writes. The state
  after it.
- eager: batched, at every free instead of when a neighbour is short.
- static: a fixed split of the buffer between the pools, which never move a page.
- unpacked: the pools share the buffer, and give back only the holes at their frontier.

A pool that packs does so fully. Ids are not checked.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kvdefrag import PoolSpec
from kvdefrag.allocator.geometry import place_bands

from .baseline_pool import BaselinePool, Policy, Tally


def single_pool(
    policy: Policy,
    num_pages: int,
    page_bytes: int = 64,
    device: torch.device | str = "cpu",
    buffer: torch.Tensor | None = None,
    kind: type[BaselinePool] = BaselinePool,
) -> BaselinePool:
    """One pool that grows up over ``num_pages`` pages, the sink included, and faces nobody."""
    spec = PoolSpec("pool", page_bytes)
    (geometry,) = place_bands([spec], num_pages * page_bytes)
    return kind(spec, geometry, policy, Tally(), torch.device(device), buffer)


def walk(holes: list[int], span: int) -> Iterator[tuple[int, int]]:
    """Source and target depths of every move, page by page from both ends; ``holes`` ascend."""
    is_hole = set(holes)
    top = span - 1
    for target in holes:
        while top in is_hole:
            top -= 1
        if top <= target:
            return
        yield top, target
        top -= 1


def pack_scalar(pool: BaselinePool) -> int:
    """Move page by page; one look-up on the host and one copy each."""
    moves = 0
    for source_depth, target_depth in walk(_sorted_holes(pool), pool.span):
        source = pool.geometry.page(source_depth)
        target = pool.geometry.page(target_depth)
        virtual_id = int(pool.physical_to_virtual[source].item())
        pool.tally.device_to_host_copies += 1
        pool.virtual_to_physical[virtual_id] = target
        pool.physical_to_virtual[target] = virtual_id
        pool.physical_to_virtual[source] = -1
        if pool.pages is not None:
            pool.pages[target].copy_(pool.pages[source])
        moves += 1
    _retreat(pool)
    return moves


def pack_batched(pool: BaselinePool) -> int:
    """Walk on the host, then one gather, an assertion on the device and index writes."""
    pairs = list(walk(_sorted_holes(pool), pool.span))
    if pairs:
        depths = torch.tensor(pairs, device=pool.holes.device)
        sources, targets = pool.at_depth(depths).T.contiguous()
        virtual_ids = pool.physical_to_virtual[sources]
        torch._assert_async((virtual_ids >= 0).all())
        pool.copy_pages(sources, targets)
        pool.virtual_to_physical[virtual_ids] = targets
        pool.physical_to_virtual[targets] = virtual_ids
        pool.physical_to_virtual.index_fill_(0, sources, -1)
    _retreat(pool)
    return len(pairs)


def absorb(pool: BaselinePool) -> int:
    """Give back the holes above the topmost live page; nothing moves."""
    origin, span = pool.geometry.origin, pool.span
    if pool.geometry.step == 1:
        band = pool.physical_to_virtual[origin : origin + span].flip(0)
    else:
        band = pool.physical_to_virtual[origin - span + 1 : origin + 1]
    is_live = torch.cat([band > 0, torch.ones(1, dtype=torch.bool, device=band.device)])
    trailing = int(is_live.to(torch.uint8).argmax())
    pool.tally.device_to_host_copies += 1
    if trailing:
        pool.span -= trailing
        depths = (pool.holes - origin) * pool.geometry.step
        pool.holes = pool.holes[depths < pool.span]
        pool.tally.device_to_host_copies += 1
    return 0


def _sorted_holes(pool: BaselinePool) -> list[int]:
    pool.tally.device_to_host_copies += 1
    depths = (pool.holes - pool.geometry.origin) * pool.geometry.step
    found: list[int] = depths.sort().values.tolist()
    return found


def _retreat(pool: BaselinePool) -> None:
    pool.span -= len(pool.holes)
    pool.holes = pool.holes[:0]


POLICIES = {
    "scalar": Policy(pack_scalar),
    "batched": Policy(pack_batched),
    "eager": Policy(pack_batched, at_free=True),
    "static": Policy(absorb, fills_holes=False),
    "unpacked": Policy(absorb, fills_holes=False),
}
"""By the names of the module's docstring."""

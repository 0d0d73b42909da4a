"""How an allocation is granted: what it takes to make room, then one launch a pool."""

from __future__ import annotations

import torch

from .band import Band
from .limits import Need
from .shared import Shared


def bind_pages(
    shared: Shared, band: Band, page_count: int, low_first: bool = False
) -> torch.Tensor:
    """Hand out ``page_count`` pages that are known to fit; nothing is launched for none."""
    if page_count == 0:
        return torch.empty(0, dtype=torch.int64, device=shared.device)
    virtual_ids = band.bind(page_count, shared.capacity.gap(band), low_first)
    if shared.debug:
        shared.compactor.check_record()
    return virtual_ids


def bind_many(shared: Shared, asked: dict[str, int]) -> dict[str, torch.Tensor]:
    """Hand out pages of several pools that are known to fit, the lowest pool first."""
    found = {
        band.spec.name: bind_pages(shared, band, asked[band.spec.name], low_first=True)
        for band in shared.capacity.chain
        if band.spec.name in asked
    }
    return {name: found[name] for name in asked}


def make_room(shared: Shared, asked: dict[str, int]) -> None:
    """Do what it takes, and no more, so that ``asked`` can be bound; raises OutOfPages.

    Holes and the gaps come first, then the pools' own pending pages, then their neighbours'.
    """
    capacity = shared.capacity
    if capacity.fits_as_is(asked):
        return
    windows = capacity.windows(asked)
    if windows:
        limit = Need({band.index: (low, high) for band, low, high in windows})
        shared.compactor.flush([band for band, _, _ in windows], limit)
    asking = [band for band in capacity.chain if asked.get(band.spec.name)]
    # Those whose fences are done come first: then perhaps the stream need not wait.
    for band in asking:
        band.reclaim(band.hazards.ready())
    if not capacity.fits_as_is(asked):
        shared.hazards.wait_for(each for band in asking for each in band.hazards.waiting())
        for band in asking:
            band.reclaim(band.hazards.waiting())

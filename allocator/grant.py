"""How an allocation is granted: what it takes to make room, then one launch a pool."""

from __future__ import annotations

import torch

from .band import Band
from .limits import Need
from .shared import Shared


def bind_pages(shared: Shared, band: Band, page_count: int) -> torch.Tensor:
    """Hand out ``page_count`` pages that are known to fit; nothing is launched for none."""
    if page_count == 0:
        return torch.empty(0, dtype=torch.int64, device=shared.device)
    virtual_ids = band.bind(page_count)
    if shared.debug:
        shared.compactor.check_record()
    return virtual_ids


def make_room(shared: Shared, asked: dict[str, int]) -> None:
    """Do what it takes, and no more, so that ``asked`` can be bound; raises OutOfPages.

    Holes and the gap come first, then the pools' own pending pages, then their neighbours'.
    """
    capacity, bands = shared.capacity, shared.compactor.bands
    if capacity.fits_as_is(asked):
        return
    limits = capacity.room_to_make(asked)
    if limits:
        short = [band for band in bands if band.spec.name in limits]
        shared.compactor.flush(short, Need(limits))
    asking = [band for band in bands if asked.get(band.spec.name)]
    # Those whose fences are done come first: then perhaps the stream need not wait.
    for band in asking:
        band.reclaim(band.hazards.ready())
    if not capacity.fits_as_is(asked):
        shared.hazards.wait_for(each for band in asking for each in band.hazards.waiting())
        for band in asking:
            band.reclaim(band.hazards.waiting())

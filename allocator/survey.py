"""From a snapshot to what the planner sees of a band: depths to use, to keep and to stop at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from kvdefrag.kernels.launch import Words

from .band import Band
from .faults import UsageError
from .geometry import BandGeometry
from .hazards import Forward, PageSet, Pending

_NONE: Words = np.empty(0, np.int64)
_NONE.flags.writeable = False


class Survey(NamedTuple):
    """A band as the planner sees it, in ascending depths.

    ``holes``: may be filled and absorbed. ``kept``: neither live nor to be used. ``stop_depth``: no
    live page there or below moves; ``stop_reason`` says why. ``passed_over``: the kept pages that
    are holes all the same, since a forward will write them.
    """

    holes: Words
    kept: Words = _NONE
    stop_depth: int = -1
    stop_reason: str = ""
    passed_over: Words = _NONE


def unread_sets(band: Band, forwards: Sequence[Forward]) -> list[PageSet]:
    """The page sets of ``band`` that the host has yet to see, in the order of ``take_over``."""
    hazards = band.hazards
    if not (hazards.pending or hazards.leases or forwards):
        return []
    page_sets = [pending.page_set for pending in hazards.pending]
    page_sets += [lease.page_set for lease in hazards.leases]
    page_sets += _written_sets(band, forwards)
    return [page_set for page_set in page_sets if page_set.seen is None]


def take_over(band: Band, unread: Sequence[PageSet], found: Iterator[Words]) -> None:
    """Give the page sets what the snapshot found of them.

    Raises UsageError, once, for a lease of an id that is not allocated: it holds nothing.
    """
    if not unread:
        return
    refused = []
    leased = {id(lease.page_set) for lease in band.hazards.leases}
    for page_set in unread:
        pages = next(found)
        if id(page_set) in leased and not np.all(pages > 0):
            refused.append(int(np.argmin(pages > 0)))
        page_set.seen = np.unique(pages // page_set.page_size)
    if refused:
        raise UsageError(
            f"virtual_ids[{refused[0]}]: a lease of pool {band.spec.name!r} names an id that was "
            f"not allocated; it holds the others"
        )


def survey(
    band: Band, pages: Words, ready: Sequence[Pending], forwards: Sequence[Forward]
) -> Survey:
    """Look at ``band``, whose hole list is ``pages``; the ``ready`` pending pages are holes too.

    ``forwards``: those whose writes must be kept out of the way. Raises ValueError with the finding
    if the hole list is not what ``unbind`` wrote.
    """
    geometry, name = band.geometry, band.spec.name
    holes = geometry.sort_into_depths(pages)
    hazards = band.hazards
    if not (hazards.pending or hazards.leases or forwards):
        check_hole_list(name, geometry, holes, band.span)
        return Survey(holes)
    if ready:
        holes = np.concatenate((holes, *(in_band(band, each.page_set) for each in ready)))
        holes.sort()
    check_hole_list(name, geometry, holes, band.span)
    kept = [in_band(band, each.page_set) for each in hazards.pending if each not in ready]
    stop_depth, stop_reason = -1, ""
    for lease in hazards.leases:
        leased = in_band(band, lease.page_set)
        if leased.size and leased[-1] > stop_depth:
            stop_depth, stop_reason = int(leased[-1]), "lease"
    written = [in_band(band, page_set) for page_set in _written_sets(band, forwards)]
    passed_over = _NONE
    if written:
        writes = np.unique(np.concatenate(written))
        is_hole = np.isin(writes, holes, assume_unique=True)
        passed_over = writes[is_hole]
        if passed_over.size:
            kept.append(passed_over)
            holes = np.setdiff1d(holes, passed_over, assume_unique=True)
        live = np.setdiff1d(writes[~is_hole], np.concatenate((_NONE, *kept)), assume_unique=True)
        if live.size and live[-1] > stop_depth:
            stop_depth, stop_reason = int(live[-1]), "forward"
    return Survey(
        holes, np.sort(np.concatenate((_NONE, *kept))), stop_depth, stop_reason, passed_over
    )


def check_hole_list(name: str, geometry: BandGeometry, depths: Words, span: int) -> None:
    """Raise ValueError unless ascending ``depths`` are distinct and in a band of ``span`` pages."""
    if depths.size > 1:
        duplicate = depths[1:] == depths[:-1]
        if duplicate.item(duplicate.argmax()):
            page = geometry.page(int(depths[duplicate.argmax()]))
            raise ValueError(f"pool {name!r}: page {page} is twice in the hole list")
    for depth in (depths.item(0), depths.item(-1)) if depths.size else ():
        if not 0 <= depth < span:
            raise ValueError(
                f"pool {name!r}: page {geometry.page(depth)} is in the hole list "
                f"but outside the band of {span} pages"
            )


def _written_sets(band: Band, forwards: Sequence[Forward]) -> list[PageSet]:
    return [page_set for forward in forwards for page_set in forward.written.get(band.index, ())]


def in_band(band: Band, page_set: PageSet) -> Words:
    """The depths of ``page_set``, ascending, without the sink, voids and what the band has left."""
    assert page_set.seen is not None
    depths = band.geometry.sort_into_depths(page_set.seen.copy())
    return depths[depths.searchsorted(0) : depths.searchsorted(band.span)]

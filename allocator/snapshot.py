"""The one device-to-host copy of a flush."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kvdefrag.kernels.backend import Backend
from kvdefrag.kernels.launch import Words
from kvdefrag.kernels.record import RECORD_WORDS

from .band import Band
from .faults import FaultRecord


class Snapshot(NamedTuple):
    """What came back. Valid until the next snapshot, since it lies in the staging buffer.

    ``record``: int64 [16], the device fault record. ``holes``: for every band, the physical page
    ids of its holes, int64, in the order of the list.
    """

    record: Words
    holes: list[Words]


class SnapshotReader:
    """Reads hole lists and fault record together, through one staging buffer made up front."""

    __slots__ = ("_backend", "_record", "_staging")

    def __init__(self, backend: Backend, record: FaultRecord, bands: Sequence[Band]) -> None:
        self._backend = backend
        self._record = record
        self._staging = backend.staging(
            RECORD_WORDS + sum(band.geometry.num_pages for band in bands)
        )

    def read(self, bands: Sequence[Band]) -> Snapshot:
        """One launch, one copy, one wait, whatever the number of bands and holes."""
        lists = [band.holes for band in bands]
        parts = [self._record.words]
        parts += [holes.buffer[holes.head : holes.end] for holes in lists]
        words = self._backend.read_back(parts, self._staging)
        holes_read = []
        start = RECORD_WORDS
        for holes in lists:
            end = start + holes.count
            holes_read.append(words[start:end])
            start = end
        return Snapshot(words[:RECORD_WORDS], holes_read)


def sorted_depths(band: Band, pages: Words) -> Words:
    """The depths of the hole list ``pages``, ascending, in the same memory.

    Raises ValueError with the finding if an entry lies outside the band or stands there twice: the
    list is then not what ``unbind`` wrote.
    """
    depths = band.geometry.sort_into_depths(pages)
    if depths.size > 1:
        duplicate = depths[1:] == depths[:-1]
        if np.count_nonzero(duplicate):
            page = band.geometry.page(int(depths[duplicate.argmax()]))
            raise ValueError(f"pool {band.spec.name!r}: page {page} is twice in the hole list")
    for depth in (depths.item(0), depths.item(-1)):
        if not 0 <= depth < band.span:
            raise ValueError(
                f"pool {band.spec.name!r}: page {band.geometry.page(depth)} is in the hole list "
                f"but outside the band of {band.span} pages"
            )
    return depths

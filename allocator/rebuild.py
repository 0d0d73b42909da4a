"""Lists and counts from the tables: what follows once a refused id has been seen."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from kvdefrag.kernels.backend import Backend
from kvdefrag.kernels.launch import Words

from .band import Band
from .faults import FaultRecord, UsageError
from .invariants import table_violations


def raise_faults(
    words: Words, record: FaultRecord, backend: Backend, bands: Sequence[Band]
) -> None:
    """Raise what the device record ``words``, int64 [16] on the host, holds; else return.

    A corrupt state stops the arena (CorruptState). A refused id has left voids in the lists:
    they are rebuilt from the tables, the record is cleared, and UsageError names the id.
    """
    if not record.holds_fault(words):
        return
    corrupt = record.corrupt_fault(words)
    if corrupt is not None:
        raise record.stop([str(corrupt)], corrupt)
    refused = record.usage_fault(words)
    violations = [text for band in bands for text in table_violations(band)]
    if violations:
        raise record.stop([str(refused), *violations], refused)
    for band in bands:
        rebuild(band, backend)
    record.clear()
    raise UsageError(f"virtual_ids: {refused}")


def rebuild(band: Band, backend: Backend) -> None:
    """Rewrite the hole list, the free ids and the live count of ``band`` from its tables.

    The tables must be inverse to each other and hold no page outside the band. The frontier stays.
    """
    p2v = band.table.physical_to_virtual.cpu().numpy()
    v2p = band.table.virtual_to_physical.cpu().numpy()
    is_hole = np.ones(band.span, np.bool_)
    is_hole[band.geometry.depth(np.flatnonzero(p2v > 0))] = False
    holes = band.geometry.page(np.flatnonzero(is_hole))
    _write(band.holes.buffer, holes, band, backend)
    band.holes.reset(holes.size)
    band.live = band.span - holes.size

    bound = v2p > 0
    next_fresh = band.ids.next_fresh
    recycled = 1 + np.flatnonzero(~bound[1:next_fresh])
    _write(band.ids.buffer, recycled, band, backend)
    band.ids.reset(recycled.size, next_fresh)


def _write(buffer: object, words: Words, band: Band, backend: Backend) -> None:
    if words.size:
        device = band.table.virtual_to_physical.device
        source = backend.operand(torch.from_numpy(words).to(device))
        backend.assign(buffer[: words.size], source)  # type: ignore[index]

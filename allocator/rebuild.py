"""Lists and counts from the tables: what follows once a refused id has been seen."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from kvdefrag.kernels.backend import Backend, Operand
from kvdefrag.kernels.launch import Words
from kvdefrag.kernels.record import ARGUMENT

from .band import Band
from .faults import FaultRecord, UsageError
from .free_pages import IdList
from .hazards import PageSet
from .invariants import host_words, table_violations


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
    argument = "virtual_ids" if refused is None else ARGUMENT.get(refused.code, "virtual_ids")
    raise UsageError(f"{argument}: {refused}")


def rebuild(band: Band, backend: Backend) -> None:
    """Rewrite the hole list, the free ids and the live count of ``band`` from its tables.

    The tables must be inverse to each other and hold no page outside the band. The frontier stays,
    and so do pending pages, unless the tables say that one is live.
    """
    p2v = host_words(band.table.physical_to_virtual)
    is_free = np.ones(band.span, np.bool_)
    is_free[band.geometry.depth(np.flatnonzero(p2v > 0))] = False
    band.live = band.span - int(np.count_nonzero(is_free))
    for pending in band.hazards.pending:
        _keep_free(pending.page_set, band, backend, is_free)
    band.hazards.drop([each for each in band.hazards.pending if not each.page_set.count])
    holes = band.geometry.page(np.flatnonzero(is_free))
    write_words(band.holes.buffer, holes, band, backend)
    band.holes.reset(holes.size)

    ids = band.ids
    if not isinstance(ids, IdList):
        ids.clear()
        ids.took(band.live)
        return
    next_fresh = ids.next_fresh
    is_free_id = host_words(band.table.virtual_to_physical)[:next_fresh] == -1
    is_free_id[list(ids.set_aside)] = False
    recycled = np.flatnonzero(is_free_id)
    write_words(ids.buffer, recycled, band, backend)
    ids.reset(recycled.size, next_fresh)


def _keep_free(
    page_set: PageSet, band: Band, backend: Backend, is_free: npt.NDArray[np.bool_]
) -> None:
    """Take the pages of ``page_set`` out of ``is_free``, and those that are not in it out of it."""
    depths = np.unique(band.geometry.depth(pages_of(page_set)))
    depths = depths[(depths >= 0) & (depths < band.span)]
    depths = depths[is_free[depths]]
    is_free[depths] = False
    page_set.seen = band.geometry.page(depths)
    if depths.size != page_set.count:
        device = band.table.virtual_to_physical.device
        page_set.words = backend.operand(torch.from_numpy(page_set.seen).to(device))
        page_set.count = depths.size


def pages_of(page_set: PageSet) -> Words:
    """The page ids of ``page_set``, read back unless a snapshot has brought them."""
    return host_words(page_set.pages) if page_set.seen is None else page_set.seen


def write_words(buffer: Operand, words: Words, band: Band, backend: Backend) -> None:
    """Write ``words`` of the host to the start of ``buffer`` on the device."""
    if words.size:
        device = band.table.virtual_to_physical.device
        source = backend.operand(torch.from_numpy(words).to(device))
        backend.assign(buffer[: words.size], source)

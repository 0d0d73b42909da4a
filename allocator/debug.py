"""Checks that read the device: what ``debug=True`` adds to a call."""

from __future__ import annotations

import numpy as np
import torch

from kvdefrag.kernels.launch import Words

from .arguments import check_host_ids
from .band import Band
from .faults import CorruptState, UsageError


def check_disjoint(band: Band, source_depths: Words, target_depths: Words) -> None:
    """Raise CorruptState, before anything moves, unless all pages of a move batch are distinct."""
    depths, counts = np.unique(np.concatenate((source_depths, target_depths)), return_counts=True)
    violations = [
        f"pool {band.spec.name!r}: page {band.geometry.page(depth)} is "
        f"{int((source_depths == depth).sum())} times a source and "
        f"{int((target_depths == depth).sum())} times a target of one move batch"
        for depth in depths[counts > 1].tolist()
    ]
    if violations:
        raise CorruptState(violations)


def check_bound_ids(band: Band, virtual_ids: torch.Tensor) -> None:
    """Raise UsageError, before anything changes, for an id that cannot be freed.

    Reads ``virtual_ids`` and the table back from the device.
    """
    host = virtual_ids.cpu().to(torch.int64).numpy()
    check_host_ids("virtual_ids", host, band.ids.capacity)
    unbound = band.table.virtual_to_physical.cpu().numpy()[host] < 0
    if unbound.any():
        index = int(np.argmax(unbound))
        raise UsageError(
            f"virtual_ids[{index}]: id {host[index]} of pool {band.spec.name!r} is not allocated"
        )

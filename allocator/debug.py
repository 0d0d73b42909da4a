"""Checks that read the device: what ``debug=True`` adds to a call."""

from __future__ import annotations

import numpy as np
import torch

from .arguments import check_host_ids
from .band import Band
from .faults import UsageError


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

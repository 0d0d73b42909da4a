"""What the calls of a pool share: its band, its arena's parts, and how they read ids."""

from __future__ import annotations

from typing import Any

import torch

from .arguments import device_ids
from .band import Band
from .shared import Shared


class PoolCalls:
    """The base of the groups of calls that make up ``MultiEndedAllocator``."""

    __slots__ = ()

    _band: Band
    _shared: Shared

    def _ids(
        self,
        ids: Any,
        name: str = "virtual_ids",
        check: bool = False,
        most_dimensions: int = 1,
        gaps: bool = False,
    ) -> torch.Tensor:
        """``ids`` on the device; a host list is checked against the id range if ``check``."""
        id_limit = self._band.ids.capacity if check else None
        tensor, uploaded = device_ids(
            name, ids, self._shared.device, id_limit, most_dimensions, gaps
        )
        if uploaded:
            self._shared.backend.host_to_device_copies += 1
        return tensor

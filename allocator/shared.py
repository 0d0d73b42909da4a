"""What the pools of one arena have in common, and how it is put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from kvdefrag.kernels.backend import Backend, Operand

from .band import Band
from .capacity import Capacity
from .compactor import Compactor
from .faults import FaultRecord
from .geometry import BandGeometry, PoolSpec
from .hazards import Hazards
from .stats import Counters

if TYPE_CHECKING:
    from .groups import FreeGroup


@dataclass(frozen=True, slots=True)
class Shared:
    """The parts that every pool of an arena uses.

    ``groups``: the group of frees that is open, if there is one.
    """

    backend: Backend
    device: torch.device
    record: FaultRecord
    capacity: Capacity
    compactor: Compactor
    hazards: Hazards
    counters: Counters
    debug: bool
    buffer: Operand
    groups: list[FreeGroup]


def assemble(
    specs: Sequence[PoolSpec],
    geometries: Sequence[BandGeometry],
    backend: Backend,
    device: torch.device,
    buffer: torch.Tensor | None,
    total_bytes: int,
    debug: bool,
) -> tuple[Shared, list[Band]]:
    """Make the bands of an arena, in the order of ``specs``, and what they share."""
    record = FaultRecord(backend, device, [spec.name for spec in specs])
    bands = [
        Band(spec, index, geometry, backend, record, device)
        for index, (spec, geometry) in enumerate(zip(specs, geometries, strict=True))
    ]
    counters, hazards = Counters(), Hazards()
    chain = sorted(bands, key=lambda band: band.geometry.rank)
    sink_bytes = max(spec.page_bytes for spec in specs)
    capacity = Capacity(chain, hazards, sink_bytes, total_bytes)
    compactor = Compactor(
        backend, record, bands, buffer, capacity, hazards, counters, device, debug
    )
    operand = None if buffer is None else backend.operand(buffer)
    shared = Shared(
        backend, device, record, capacity, compactor, hazards, counters, debug, operand, []
    )
    return shared, bands

"""What the pools of one arena have in common, and how it is put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kvdefrag.kernels.backend import Backend

from .band import Band
from .capacity import Capacity
from .compactor import Compactor
from .faults import FaultRecord
from .geometry import BandGeometry, PoolSpec
from .hazards import Hazards
from .stats import Counters


@dataclass(frozen=True, slots=True)
class Shared:
    """The parts that every pool of an arena uses."""

    backend: Backend
    device: torch.device
    record: FaultRecord
    capacity: Capacity
    compactor: Compactor
    hazards: Hazards
    counters: Counters
    debug: bool


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
    shared = Shared(backend, device, record, capacity, compactor, hazards, counters, debug)
    return shared, bands

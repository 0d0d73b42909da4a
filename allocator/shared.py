"""What the pools of one arena have in common, and how it is put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from kvdefrag.kernels.backend import Backend, Operand

from .band import Band
from .capacity import Capacity
from .compactor import Compactor
from .faults import FaultRecord
from .free_pages import BorrowedIds, IdList, Ids
from .geometry import BandGeometry, PoolSpec
from .hazards import Hazards
from .page_table import make_tables
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

    def borrowers_of(self, band: Band) -> list[Band]:
        """The pools that borrow the ids of ``band``."""
        return [each for each in self.compactor.bands if each.spec.ids_from == band.spec.name]


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
    tables = make_tables(specs, geometries, backend, device)
    own_ids = {
        spec.name: IdList(backend, device, table.virtual_to_physical.numel() - 1)
        for spec, table in zip(specs, tables, strict=True)
        if spec.ids_from is None
    }
    bands = [
        Band(spec, index, geometry, table, _ids(spec, own_ids), backend, record)
        for index, (spec, geometry, table) in enumerate(zip(specs, geometries, tables, strict=True))
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


def _ids(spec: PoolSpec, own_ids: Mapping[str, IdList]) -> Ids:
    return own_ids[spec.name] if spec.ids_from is None else BorrowedIds(own_ids[spec.ids_from])

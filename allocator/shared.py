"""What the pools of one arena have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from kvdefrag.kernels.backend import Backend, Operand

from .capacity import Capacity
from .compactor import Compactor
from .faults import FaultRecord
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

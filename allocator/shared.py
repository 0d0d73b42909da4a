"""What the pools of one arena have in common."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvdefrag.kernels.backend import Backend

from .capacity import Capacity
from .compactor import Compactor
from .faults import FaultRecord
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

"""Host logic: which pages are free, which are moved, and when.

Imports run one way: kernels <- allocator <- perf.
"""

from .arena import Arena
from .faults import AllocatorError, CorruptState, OutOfPages, UsageError
from .feasibility import FeasibilityReport
from .geometry import PoolSpec
from .groups import FreeGroup
from .hazards import Fence, Lease, MoveBlock
from .layouts import EnvelopeLayout, attention_layout, mamba_layout, mla_layout
from .limits import FlushResult
from .pool import MultiEndedAllocator
from .repair import RepairReport
from .stats import ArenaStats, PoolStats

__all__ = [
    "AllocatorError",
    "Arena",
    "ArenaStats",
    "CorruptState",
    "EnvelopeLayout",
    "FeasibilityReport",
    "Fence",
    "FlushResult",
    "FreeGroup",
    "Lease",
    "MoveBlock",
    "MultiEndedAllocator",
    "OutOfPages",
    "PoolSpec",
    "PoolStats",
    "RepairReport",
    "UsageError",
    "attention_layout",
    "mamba_layout",
    "mla_layout",
]

"""kvdefrag packs the live pages of a shared KV cache on the GPU while the server runs."""

from kvdefrag.allocator import (
    AllocatorError,
    Arena,
    ArenaStats,
    CorruptState,
    EnvelopeLayout,
    FeasibilityReport,
    FlushResult,
    MultiEndedAllocator,
    OutOfPages,
    PoolSpec,
    PoolStats,
    UsageError,
    attention_layout,
    mamba_layout,
    mla_layout,
)

__version__ = "0.1.0"

__all__ = [
    "AllocatorError",
    "Arena",
    "ArenaStats",
    "CorruptState",
    "EnvelopeLayout",
    "FeasibilityReport",
    "FlushResult",
    "MultiEndedAllocator",
    "OutOfPages",
    "PoolSpec",
    "PoolStats",
    "UsageError",
    "__version__",
    "attention_layout",
    "mamba_layout",
    "mla_layout",
]

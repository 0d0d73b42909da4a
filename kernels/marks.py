"""Marks: a word an id, by which the lanes of one call find out who of them named it first."""

from __future__ import annotations

import torch
import triton.language as tl

from .launch import jit, require_words
from .translate import MAX_INT32

MAX_MARKED = MAX_INT32 - 2**16
"""Indices are 31-bit, and the kernels step over the end by less than this."""


@jit()
def _mark_of(index, serial):
    """Higher for a later call, and within one call for an earlier token: 1 at least."""
    return (index * 0 + serial).to(tl.int64) * 2147483648 + (2147483647 - index)


def require_marks(marks: torch.Tensor, v2p: torch.Tensor, count: int, serial: int) -> None:
    """Raise ValueError for marks or a serial that cannot order ``count`` ids or tokens."""
    require_words("marks", marks, v2p.numel(), v2p)
    if not 1 <= serial <= MAX_INT32:
        raise ValueError(f"serial: expected 1 to {MAX_INT32}, got {serial}")
    if count > MAX_MARKED:
        raise ValueError(f"ids: at most {MAX_MARKED} in one call, got {count}")

"""How every kernel of this package is declared, checked and launched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import triton

Words = npt.NDArray[np.int64]
"""Page ids, virtual ids and record words on the host."""

MAX_PROGRAMS = 2**31 - 1
"""Largest grid on the x axis (CUDA programming guide, table of compute capabilities)."""

LANES = 128
"""Ids a program of the table kernels: one a thread of 4 warps, so no layout conversion."""


def jit(**options: Any) -> Callable[[Callable[..., None]], Any]:
    """``triton.jit`` typed as a plain decorator: triton ships no type information."""
    decorator: Callable[[Callable[..., None]], Any] = triton.jit(**options)
    return decorator


def launch(kernel: Any, program_count: int, *arguments: Any, **constants: Any) -> None:
    """Launch ``kernel`` with ``program_count`` programs on x, on the device of the first argument.

    Raises ValueError if the grid is larger than a GPU takes.
    """
    if program_count > MAX_PROGRAMS:
        raise ValueError(
            f"program_count: at most {MAX_PROGRAMS} in one launch, got {program_count}"
        )
    device = arguments[0].device
    if device.type == "cuda" and device.index != torch.cuda.current_device():
        with torch.cuda.device(device):
            kernel[(program_count,)](*arguments, **constants)
    else:
        kernel[(program_count,)](*arguments, **constants)


def require_words(name: str, tensor: torch.Tensor, length: int, beside: torch.Tensor) -> None:
    """Raise ValueError unless ``tensor`` is contiguous int64 [>= length] on ``beside``'s device."""
    if tensor.dtype != torch.int64 or tensor.dim() != 1 or not tensor.is_contiguous():
        raise ValueError(
            f"{name}: expected a contiguous 1-D int64 tensor, "
            f"got {tensor.dtype} {tuple(tensor.shape)} with strides {tensor.stride()}"
        )
    if tensor.device != beside.device:
        raise ValueError(f"{name}: expected device {beside.device}, got {tensor.device}")
    if tensor.numel() < length:
        raise ValueError(f"{name}: expected at least {length} elements, got {tensor.numel()}")


def require_ids(name: str, tensor: torch.Tensor, beside: torch.Tensor) -> None:
    """Raise ValueError unless ``tensor`` is 1-D int32 or int64 (any stride), beside ``beside``."""
    if tensor.dtype not in (torch.int32, torch.int64) or tensor.dim() != 1:
        raise ValueError(
            f"{name}: expected a 1-D int32 or int64 tensor, "
            f"got {tensor.dtype} {tuple(tensor.shape)}"
        )
    if tensor.device != beside.device:
        raise ValueError(f"{name}: expected device {beside.device}, got {tensor.device}")

"""How every kernel of this package is declared, checked and launched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import triton
from triton import knobs
from triton.runtime import driver

Words = npt.NDArray[np.int64]
"""Page ids, virtual ids and record words on the host."""

Mask = npt.NDArray[np.bool_]
"""Which lanes of a batch, on the host."""

MAX_PROGRAMS = 2**31 - 1
"""Largest grid on the x axis (CUDA programming guide, table of compute capabilities)."""

MAX_STRIDE = 2**31 - 1
"""Strides travel as 32-bit arguments: a wider one would be another compiled variant."""

LANES = 128
"""Ids a program of the table kernels: one a thread of 4 warps, so no layout conversion."""

WARPS = 4
"""Warps of a program, by default."""


def jit(**options: Any) -> Callable[[Callable[..., None]], Any]:
    """``triton.jit`` typed as a plain decorator: triton ships no type information.

    Pointers whose alignment is not specialised are not specialised at all: on AMD, code compiled
    with tensors below 2 GiB has 32-bit offsets, and a kept handle would take a larger one.
    """
    pointers = options.get("do_not_specialize_on_alignment", [])
    options["do_not_specialize"] = [*options.get("do_not_specialize", []), *pointers]
    decorator: Callable[[Callable[..., None]], Any] = triton.jit(**options)
    return decorator


_handles: dict[tuple[Any, ...], Any] = {}
"""Compiled kernels by kernel, device and variant: what Triton would look up again every time."""


def launch(
    kernel: Any,
    program_count: int,
    *arguments: Any,
    variant: tuple[Any, ...] = (),
    warps: int = WARPS,
    **constants: Any,
) -> None:
    """Launch ``kernel`` with ``program_count`` programs on x, on the device of the first argument.

    ``warps``: of a program, the same in every launch of a kernel.

    ``constants``: the constexpr arguments, in the order of the signature. ``variant``: everything
    that the compiled code depends on, which is the dtypes and constants that differ between calls;
    nothing is specialised on a count, a stride or an alignment. The compiled handle is kept by
    device and variant and called directly from the second launch on.

    Raises ValueError if the grid is larger than a GPU takes.
    """
    if program_count > MAX_PROGRAMS:
        raise ValueError(
            f"program_count: at most {MAX_PROGRAMS} in one launch, got {program_count}"
        )
    # -1 on the CPU. A torch.device would cost much more.
    device = arguments[0].get_device()
    if device >= 0 and device != torch.cuda.current_device():
        with torch.cuda.device(device):
            launch(kernel, program_count, *arguments, variant=variant, warps=warps, **constants)
        return
    key = (id(kernel), device, variant)
    handle = _handles.get(key)
    if handle is None:
        # The interpreter compiles nothing and returns None.
        options = {} if warps == WARPS else {"num_warps": warps}
        _handles[key] = kernel[(program_count,)](*arguments, **constants, **options)
    elif _is_hooked():
        handle[(program_count, 1, 1)](*arguments, *constants.values())
    else:
        # What ``handle[grid]`` does where nobody listens, at half its price.
        stream = driver.active.get_current_stream(device)
        handle.run(
            program_count, 1, 1, stream, handle.function, handle.packed_metadata, None, None, None,
            *arguments, *constants.values(),
        )  # fmt: skip


def _is_hooked() -> bool:
    """Whether a profiler wants to hear of launches: a chain of hooks, in triton 3.4 one or None."""
    enter, leave = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
    return bool(getattr(enter, "calls", enter) or getattr(leave, "calls", leave))


def require_words(
    name: str, tensor: torch.Tensor, length: int, beside: torch.Tensor, dimensions: int = 1
) -> None:
    """Raise ValueError unless ``tensor`` is contiguous int64 [>= length] on ``beside``'s device."""
    if tensor.dtype != torch.int64 or tensor.dim() != dimensions or not tensor.is_contiguous():
        raise ValueError(
            f"{name}: expected a contiguous {dimensions}-D int64 tensor, "
            f"got {tensor.dtype} {tuple(tensor.shape)} with strides {tensor.stride()}"
        )
    if tensor.device != beside.device:
        raise ValueError(f"{name}: expected device {beside.device}, got {tensor.device}")
    if tensor.numel() < length:
        raise ValueError(f"{name}: expected at least {length} elements, got {tensor.numel()}")


def require_rows(name: str, tensor: torch.Tensor, beside: torch.Tensor) -> None:
    """``require_words`` of two dimensions, and as many words a row as ``beside`` has."""
    require_words(name, tensor, 0, beside, dimensions=2)
    if tensor.shape[1] != beside.numel():
        raise ValueError(f"{name}: expected {beside.numel()} words a row, got {tensor.shape[1]}")


def require_pairs(sources: torch.Tensor, targets: torch.Tensor, beside: torch.Tensor) -> None:
    """Raise ValueError unless both are contiguous int64 [moves] on ``beside``'s device."""
    require_words("sources", sources, 0, beside)
    require_words("targets", targets, 0, beside)
    if targets.numel() != sources.numel():
        raise ValueError(f"targets: expected {sources.numel()} elements, got {targets.numel()}")


def require_ids(
    name: str, tensor: torch.Tensor, beside: torch.Tensor, most_dimensions: int = 1
) -> None:
    """Raise ValueError unless ``tensor`` is int32 or int64 ids, of any strides, beside ``beside``.

    It has one dimension, or up to ``most_dimensions``.
    """
    dimensions = tensor.dim()
    if tensor.dtype not in (torch.int32, torch.int64) or not 1 <= dimensions <= most_dimensions:
        kind = "1-D" if most_dimensions == 1 else f"1-D to {most_dimensions}-D"
        raise ValueError(
            f"{name}: expected a {kind} int32 or int64 tensor, "
            f"got {tensor.dtype} {tuple(tensor.shape)}"
        )
    if tensor.stride(0) > MAX_STRIDE or tensor.stride(-1) > MAX_STRIDE:
        raise ValueError(
            f"{name}: expected a stride of {MAX_STRIDE} at most, got {tensor.stride()}"
        )
    if tensor.device != beside.device:
        raise ValueError(f"{name}: expected device {beside.device}, got {tensor.device}")

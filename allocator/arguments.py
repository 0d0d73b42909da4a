"""What callers pass in, checked before anything changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from kvdefrag.kernels.backend import Backend, choose_backend
from kvdefrag.kernels.launch import MAX_STRIDE, Words

from .faults import POOL_BITS, UsageError
from .geometry import PoolSpec, require_count

MAX_POOLS = 2**POOL_BITS
"""A call tag names the pool."""

ID_DTYPES = (torch.int64, torch.int32)


def device_ids(
    name: str,
    ids: Any,
    device: torch.device,
    id_limit: int | None = None,
    most_dimensions: int = 1,
    gaps: bool = False,
) -> tuple[torch.Tensor, bool]:
    """``ids`` as an int32 or int64 tensor [ids] on ``device``, and whether it was uploaded.

    A tensor must be there already, of any stride below 2**31. A host sequence or array of integers
    is uploaded, after a check that its ids are distinct and in 1..``id_limit``, if that is given.
    With ``gaps`` 0, -1 and equal ids are good. A tensor may have up to ``most_dimensions``. Raises
    UsageError naming ``name`` for anything else.
    """
    if isinstance(ids, torch.Tensor):
        if ids.dtype not in ID_DTYPES:
            raise UsageError(f"{name}: expected int64 or int32, got {ids.dtype}")
        if ids.device != device:
            raise UsageError(f"{name}: expected device {device}, got {ids.device}")
        if ids.layout is not torch.strided:
            raise UsageError(f"{name}: expected a strided tensor, got {ids.layout}")
        dimensions = ids.dim()
        if not 1 <= dimensions <= most_dimensions:
            raise UsageError(f"{name}: expected shape [ids], got {list(ids.shape)}")
        if ids.stride(-1) > MAX_STRIDE or (dimensions > 1 and ids.stride(0) > MAX_STRIDE):
            raise UsageError(f"{name}: expected strides up to {MAX_STRIDE}, got {ids.stride()}")
        return ids, False
    host = _host_ids(name, ids)
    if id_limit is not None:
        check_host_ids(name, host, id_limit, gaps)
    return torch.from_numpy(host).to(device), True


def _host_ids(name: str, ids: Any) -> Words:
    if isinstance(ids, np.ndarray):
        if ids.dtype.kind not in "iu" or ids.ndim != 1:
            raise UsageError(
                f"{name}: expected integers of shape [ids], got {ids.dtype} {list(ids.shape)}"
            )
        if ids.dtype == np.uint64:
            ids = ids.astype(object)  # so that what int64 cannot hold overflows below
    elif isinstance(ids, Sequence) and not isinstance(ids, str | bytes):
        for index, value in enumerate(ids):
            if type(value) is not int and not isinstance(value, np.integer):
                raise UsageError(f"{name}[{index}]: expected an integer, got {value!r}")
    else:
        raise UsageError(f"{name}: expected a tensor or a list of integers, got {ids!r}")
    try:
        return np.array(ids, dtype=np.int64)
    except OverflowError:
        raise UsageError(f"{name}: expected ids below 2**63, got {max(ids, key=abs)}") from None


def check_host_ids(name: str, host: Words, id_limit: int, gaps: bool = False) -> None:
    """Raise UsageError unless the ids of ``host``, int64 [ids], are distinct and in 1..id_limit.

    With ``gaps`` 0, -1 and equal ids are good.
    """
    least = -1 if gaps else 1
    outside = (host < least) | (host > id_limit)
    if outside.any():
        index = int(outside.argmax())
        raise UsageError(f"{name}[{index}]: expected {least} to {id_limit}, got {host[index]}")
    if gaps:
        return
    order = np.argsort(host, kind="stable")
    repeated = host[order[1:]] == host[order[:-1]]
    if repeated.any():
        index = int(order[1:][repeated].min())
        raise UsageError(f"{name}[{index}]: {host[index]} is there twice")


def pool_counts(name: str, counts: Any, pool_names: Sequence[str]) -> dict[str, int]:
    """``counts``, pages by pool name, as a checked dict."""
    if not isinstance(counts, Mapping):
        raise UsageError(f"{name}: expected a dict of pages by pool name, got {counts!r}")
    for pool in counts:
        if pool not in pool_names:
            raise UsageError(f"{name}: no pool {pool!r}, the pools are {list(pool_names)}")
    return {pool: require_count(f"{name}[{pool!r}]", count) for pool, count in counts.items()}


def checked_specs(pools: Any) -> list[PoolSpec]:
    """``pools`` as a list of specifications."""
    if not isinstance(pools, Sequence) or not all(isinstance(spec, PoolSpec) for spec in pools):
        raise UsageError(f"pools: expected a list of PoolSpec, got {pools!r}")
    if not 1 <= len(pools) <= MAX_POOLS:
        raise UsageError(f"pools: expected 1 to {MAX_POOLS} pools, got {len(pools)}")
    names = [spec.name for spec in pools]
    if len(set(names)) != len(names):
        raise UsageError(f"pools: expected distinct names, got {names}")
    own = [spec.name for spec in pools if spec.ids_from is None]
    for spec in pools:
        if spec.ids_from is not None and spec.ids_from not in own:
            raise UsageError(
                f"ids_from: pool {spec.name!r} borrows from {spec.ids_from!r}, but the pools with "
                f"ids of their own are {own}"
            )
    return list(pools)


def checked_device(device: Any, buffer: Any) -> torch.device:
    """Where an arena lives: ``device``, else that of ``buffer``, else cuda."""
    if buffer is not None and not isinstance(buffer, torch.Tensor):
        raise UsageError(f"buffer: expected a 1-D uint8 tensor, got {buffer!r}")
    if device is None:
        device = buffer.device if isinstance(buffer, torch.Tensor) else "cuda"
    try:
        place = torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, TypeError) as error:
        raise UsageError(f"device: {device!r} cannot be used: {error}") from error
    if place.type not in ("cpu", "cuda"):
        raise UsageError(f"device: expected a cpu or cuda device, got {place}")
    return place


def chosen_backend(name: str, device: torch.device) -> Backend:
    """The backend called ``name``, as ``choose_backend``."""
    try:
        return choose_backend(name, device)
    except ValueError as error:
        raise UsageError(str(error)) from None


def check_page_bytes(
    buffer: torch.Tensor | None, backend: Backend, specs: Sequence[PoolSpec]
) -> None:
    """Refuse pages that the backend could not copy."""
    for spec in specs:
        if spec.mover is None and buffer is not None:
            try:
                backend.check_page_bytes(buffer, spec.page_bytes)
            except ValueError as error:
                raise UsageError(f"pool {spec.name!r}: {error}") from None


def checked_buffer(
    buffer: torch.Tensor | None, total_bytes: int, device: torch.device, specs: Sequence[PoolSpec]
) -> torch.Tensor | None:
    """The arena's buffer: ``buffer``, or a new one, or None where no pool needs one."""
    if buffer is None:
        if all(spec.mover is not None for spec in specs):
            return None
        return torch.zeros(total_bytes, dtype=torch.uint8, device=device)
    if buffer.dtype != torch.uint8 or buffer.dim() != 1:
        raise UsageError(
            f"buffer: expected a 1-D uint8 tensor, got {buffer.dtype} {list(buffer.shape)}"
        )
    if not buffer.is_contiguous():
        raise UsageError(f"buffer: expected a contiguous tensor, got stride {buffer.stride(0)}")
    if buffer.device != device:
        raise UsageError(f"buffer: expected device {device}, got {buffer.device}")
    if buffer.numel() != total_bytes:
        raise UsageError(f"buffer: expected {total_bytes} bytes, got {buffer.numel()}")
    return buffer

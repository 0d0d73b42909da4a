"""What the library promises an engine on a GPU: nothing compiles late, nothing waits, graphs work.

``check_prewarm`` must run first in its process: it counts what is compiled.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from kvdefrag import Arena, PoolSpec, kernels

from .gpu_check_machine import finish
from .gpu_check_report import Report, require
from .gpu_check_sizes import MIB, PoolShape, Sizes
from .gpu_check_traffic import IDS_MOST, Traffic, uploaded

PREWARMED: tuple[tuple[PoolShape, PoolShape], ...] = (
    (("full", 656, 16), ("state", 65536, 1)),
    (("full", 16384 + 8, 3), ("state", 80, 1)),
)
"""Pools of two arenas; together they copy in both forms, by 16-byte and by 8-byte units."""

BUFFER_BYTES = 8 * MIB

MANY_CALLS = 500
"""So many that each kind of call is among them."""

BORROWING = (("full", 656, 16), ("window", 4096, 16))
"""Pools of a third arena; the second borrows the ids of the first."""


def check_prewarm(device: torch.device, sizes: Sizes, report: Report) -> None:
    """After ``prewarm`` nothing compiles, and it changes nothing itself."""
    for pools in (*PREWARMED, BORROWING):
        with report.check(f"prewarm: then {sizes.warm_calls} random calls on {pools}"):
            arena = arena_of(device, pools)
            _warm_torch(device)
            before, variants = _state(arena), compiled_variants()
            seconds = arena.prewarm()
            report.figure("prewarm", {"pools": pools}, "seconds", "s", [seconds])
            require(
                all(torch.equal(*pair) for pair in zip(before, _state(arena), strict=True)),
                "prewarm changed a table, a list or a byte",
            )
            added = compiled_variants() - variants
            require(added > 0 or device.type == "cpu", "prewarm compiled nothing: not seen?")
            _require_nothing_new(arena, sizes, report)


def _require_nothing_new(arena: Arena, sizes: Sizes, report: Report) -> None:
    traffic = Traffic(arena, seed=6)
    variants, taken = compiled_variants(), _taken_bytes(arena.device)
    for _ in range(sizes.warm_calls):
        traffic.step()
    finish(arena.device)
    grown = _taken_bytes(arena.device) - taken
    require(compiled_variants() == variants, "a call compiled a kernel")
    require(arena.stats().moves > 0, "the calls moved no page")
    arena.check(deep=True)
    missing = traffic.kinds() - set(traffic.called)
    is_long = sizes.warm_calls >= MANY_CALLS
    require(not missing or not is_long, f"never called: {sorted(missing)}")
    if arena.device.type == "cuda":
        name = f"device memory taken by calls after prewarm, pools {list(arena.pools)}"
        report.target(name, 0, grown, "bytes", at_least=False)


def check_no_sync(device: torch.device, sizes: Sizes, report: Report) -> None:
    """No call waits for the device, the one read-back of a flush excepted."""
    with report.check("sync debug mode: it raises where the host waits"):
        with sync_debug_mode("error"):
            waits = _raises(lambda: torch.ones(1, device=device).item())
        require(waits, "a scalar read went unnoticed")
    for pools in (PREWARMED[0], BORROWING):
        with report.check(f"sync debug mode: {sizes.warm_calls} random calls on {pools}"):
            arena = arena_of(device, pools)
            arena.prewarm()
            traffic = Traffic(arena, seed=2)
            excuse_read_backs(arena, sync_debug_mode)
            with sync_debug_mode("error"):
                for _ in range(sizes.warm_calls):
                    traffic.step()
            require(arena.stats().moves > 0, "the calls moved no page")
            arena.check(deep=True)


@contextmanager
def sync_debug_mode(mode: str) -> Iterator[None]:
    """torch's sync debug mode inside the block; what it was afterwards."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode(mode)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def compiled_variants() -> int:
    """Compiled variants of all kernels of the package; 0 in the interpreter."""
    found: dict[int, Any] = {}
    for module in pkgutil.iter_modules(kernels.__path__):
        members = vars(importlib.import_module(f"{kernels.__name__}.{module.name}")).values()
        found |= {id(member): member for member in members if hasattr(member, "device_caches")}
    caches = [cache for kernel in found.values() for cache in kernel.device_caches.values()]
    return sum(len(cache[0]) for cache in caches)


def arena_of(device: torch.device, pools: tuple[PoolShape, PoolShape]) -> Arena:
    """An arena of two pools; of ``BORROWING`` the second has the ids of the first."""
    up, down = pools
    ids_from = up[0] if pools == BORROWING else None
    specs = [PoolSpec(*up, grows="up"), PoolSpec(*down, grows="down", ids_from=ids_from)]
    return Arena(BUFFER_BYTES, specs, device=device, backend="triton")


def excuse_read_backs(arena: Arena, mode: Callable[[str], Any]) -> None:
    """From now on ``mode("default")`` holds inside this arena's read-backs."""
    backend: Any = arena._shared.backend
    read_back = backend.read_back

    def excused(*arguments: Any) -> Any:
        with mode("default"):
            return read_back(*arguments)

    backend.read_back = excused


def _state(arena: Arena) -> list[torch.Tensor]:
    """Copies of every table, list and byte."""
    assert arena.buffer is not None
    tensors: list[torch.Tensor | None] = [arena.buffer, arena._shared.record.words]
    for pool in arena.pools.values():
        band = pool._band
        tensors += [pool.virtual_to_physical, pool.physical_to_virtual]
        # A pool that borrows has no list of ids.
        tensors += [band.holes.buffer, band.ids.buffer, band.table.marks]
    return [tensor.clone() for tensor in tensors if tensor is not None]


def _warm_torch(device: torch.device) -> None:
    """Load torch's own kernels that ``Traffic`` uses, and some memory for its results."""
    ids = torch.zeros(IDS_MOST, dtype=torch.int64, device=device)
    ids.to(torch.int32)
    ids[::2].to(torch.int32)
    torch.cat([ids[1::2], ids * 3])
    uploaded([1, 2], device).to(torch.int32)
    held = [torch.empty(MIB // 2, dtype=torch.uint8, device=device) for _ in range(16)]
    del held


def _taken_bytes(device: torch.device) -> int:
    """Device memory in use, less what torch's allocator holds for tensors."""
    if device.type != "cuda":
        return 0
    free, total = torch.cuda.mem_get_info(device)
    return total - free - torch.cuda.memory_reserved(device)


def _raises(call: Callable[[], Any]) -> bool:
    try:
        call()
    except RuntimeError:
        return True
    return False

"""What the library promises an engine on a GPU: nothing compiles late, nothing waits, graphs work.

``check_prewarm`` must run first in its process: it counts what is compiled.
"""

from __future__ import annotations

import importlib
import pkgutil
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from kvdefrag import Arena, OutOfPages, PoolSpec, kernels

from .gpu_check_machine import finish
from .gpu_check_report import Report, require
from .gpu_check_sizes import MIB, PoolShape, Sizes

PREWARMED: tuple[tuple[PoolShape, PoolShape], ...] = (
    (("full", 656, 16), ("state", 65536, 1)),
    (("full", 16384 + 8, 3), ("state", 80, 1)),
)
"""Pools of two arenas; together they copy in both forms, by 16-byte and by 8-byte units."""

BUFFER_BYTES = 8 * MIB

IDS_MOST = 300


class Traffic:
    """A seeded engine that never reads the device: it keeps the ids that it got as tensors."""

    def __init__(self, arena: Arena, seed: int) -> None:
        self.arena = arena
        self.draw = random.Random(seed)
        self.live: dict[str, list[torch.Tensor]] = {name: [] for name in arena.pools}
        self.outs = {
            dtype: torch.zeros(IDS_MOST, dtype=dtype, device=arena.device)
            for dtype in (torch.int64, torch.int32)
        }

    def step(self) -> None:
        """One random call."""
        name = self.draw.choice(list(self.live))
        self.draw.choice((self._alloc, self._alloc, self._free, self._flush, self._look))(name)

    def _alloc(self, name: str) -> None:
        count = self.draw.choice((1, 2, 15, 16, 17, 128, self.draw.randint(1, IDS_MOST)))
        try:
            if self.draw.random() < 0.2:
                for other, ids in self.arena.alloc_many({name: count}).items():
                    self.live[other].append(ids)
            else:
                self.live[name].append(self.arena[name].alloc(count))
        except OutOfPages:
            self._free(name)

    def _free(self, name: str) -> None:
        if not self.live[name]:
            return
        ids = self.live[name].pop(self.draw.randrange(len(self.live[name])))
        if self.draw.random() < 0.6:
            self.live[name].append(ids[1::2])
            ids = ids[::2]
        self.arena[name].free(self._form(ids))

    def _flush(self, name: str) -> None:
        limits: dict[str, Any] = self.draw.choice(
            ({"urgent": True}, {}, {"max_moves": 7}, {"max_bytes": MIB // 2})
        )
        self.draw.choice((self.arena[name], self.arena)).flush(**limits)

    def _look(self, name: str) -> None:
        if not self.live[name]:
            return
        pool, ids = self.arena[name], self._form(self.draw.choice(self.live[name]))
        out = self.outs[self.draw.choice(list(self.outs))]
        pool.translate(ids)
        pool.translate_tokens(ids)
        pool.translate_tokens(ids, out=out[: ids.numel()])

    def _form(self, ids: torch.Tensor) -> torch.Tensor:
        return ids.to(torch.int32) if self.draw.random() < 0.3 else ids


def check_prewarm(device: torch.device, sizes: Sizes, report: Report) -> None:
    """After ``prewarm`` nothing compiles, and it changes nothing itself."""
    for pools in PREWARMED:
        with report.check(f"prewarm: then {sizes.warm_calls} random calls on {pools}"):
            arena = _arena(device, pools)
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
    traffic = Traffic(arena, seed=1)
    variants, taken = compiled_variants(), _taken_bytes(arena.device)
    for _ in range(sizes.warm_calls):
        traffic.step()
    finish(arena.device)
    grown = _taken_bytes(arena.device) - taken
    require(compiled_variants() == variants, "a call compiled a kernel")
    require(arena.stats().moves > 0, "the calls moved no page")
    arena.check(deep=True)
    if arena.device.type == "cuda":
        name = f"device memory taken by calls after prewarm, pools {list(arena.pools)}"
        report.target(name, 0, grown, "bytes", at_least=False)


def check_no_sync(device: torch.device, sizes: Sizes, report: Report) -> None:
    """No call waits for the device, the one read-back of a flush excepted."""
    with report.check("sync debug mode: it raises where the host waits"):
        with sync_debug_mode("error"):
            waits = _raises(lambda: torch.ones(1, device=device).item())
        require(waits, "a scalar read went unnoticed")
    with report.check(f"sync debug mode: {sizes.warm_calls} random calls"):
        arena = _arena(device, PREWARMED[0])
        arena.prewarm()
        traffic = Traffic(arena, seed=2)
        excuse_read_backs(arena, sync_debug_mode)
        with sync_debug_mode("error"):
            for _ in range(sizes.warm_calls):
                traffic.step()
        require(arena.stats().moves > 0, "the calls moved no page")
        arena.check(deep=True)


def check_graph(device: torch.device, report: Report) -> None:
    """A captured ``translate_tokens`` follows the pages through a flush."""
    with report.check("CUDA graph: translate_tokens(out=) replayed after a flush"):
        arena = _arena(device, PREWARMED[0])
        arena.prewarm()
        pool = arena["full"]
        ids = pool.alloc(512)
        kept = ids[1::2].contiguous()
        tokens = kept * pool.page_size + torch.arange(kept.numel(), device=device) % pool.page_size
        out = torch.zeros_like(tokens)
        address = out.data_ptr()
        pool.translate_tokens(tokens, out=out)
        finish(device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            allocations = _allocations(device)
            pool.translate_tokens(tokens, out=out)
            allocations = _allocations(device) - allocations
        require(allocations == 0, f"{allocations} allocations inside the capture")
        before = out.clone()
        pool.free(ids[::2])
        moves = pool.flush(urgent=True).moves
        require(moves > 0, "the flush moved no page")
        out.fill_(-1)
        graph.replay()
        finish(device)
        page_size = pool.page_size
        wanted = pool.virtual_to_physical[tokens // page_size] * page_size + tokens % page_size
        require(torch.equal(out, wanted), "the replay gives other addresses than the table")
        require(not torch.equal(out, before), "the replay gives the old addresses")
        require(out.data_ptr() == address, "the result moved")


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


def _arena(device: torch.device, pools: tuple[PoolShape, PoolShape]) -> Arena:
    up, down = pools
    specs = [PoolSpec(*up, grows="up"), PoolSpec(*down, grows="down")]
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
    tensors = [arena.buffer, arena._shared.record.words]
    for pool in arena.pools.values():
        band = pool._band
        tensors += [pool.virtual_to_physical, pool.physical_to_virtual]
        tensors += [band.holes.buffer, band.ids.buffer]
    return [tensor.clone() for tensor in tensors]


def _warm_torch(device: torch.device) -> None:
    """Load torch's own kernels that ``Traffic`` uses, and some memory for its results."""
    ids = torch.zeros(IDS_MOST, dtype=torch.int64, device=device)
    ids.to(torch.int32)
    ids[::2].to(torch.int32)
    held = [torch.empty(MIB // 2, dtype=torch.uint8, device=device) for _ in range(16)]
    del held


def _taken_bytes(device: torch.device) -> int:
    """Device memory in use, less what torch's allocator holds for tensors."""
    if device.type != "cuda":
        return 0
    free, total = torch.cuda.mem_get_info(device)
    return total - free - torch.cuda.memory_reserved(device)


def _allocations(device: torch.device) -> int:
    return int(torch.cuda.memory_stats(device).get("allocation.all.allocated", 0))


def _raises(call: Callable[[], Any]) -> bool:
    try:
        call()
    except RuntimeError:
        return True
    return False

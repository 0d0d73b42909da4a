"""Translations captured in a CUDA graph: they follow the pages, and their grid costs little."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from kvdefrag import MultiEndedAllocator

from .gpu_check_clock import Clock
from .gpu_check_machine import finish
from .gpu_check_promises import PREWARMED, arena_of
from .gpu_check_report import Report, require
from .gpu_check_sizes import Sizes

GROUP = "captured translate_tokens"
EXACT, CAPACITY = "sized for its tokens", "sized for 131,072 tokens"
CAPACITY_TOKENS = 131_072
USED_TOKENS = 8192
LAUNCHES = 20
"""Of one graph, so that the launch of the graph itself counts little."""

CAPACITY_RATIO = 1.5


class Captured(NamedTuple):
    """A graph that translates ``tokens`` into ``out``; ``allocations`` made while it was made."""

    graph: Any
    tokens: torch.Tensor
    out: torch.Tensor
    allocations: int


def captured(
    pool: MultiEndedAllocator, tokens: torch.Tensor, out_width: int, launches: int = 1
) -> Captured:
    """Capture ``translate_tokens`` of ``tokens`` into rows of ``out_width``."""
    device = tokens.device
    out = torch.zeros(out_width, dtype=torch.int64, device=device)
    pool.translate_tokens(tokens, out=out, out_width=out_width)
    finish(device)
    graph: Any = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        allocations = _allocations(device)
        for _ in range(launches):
            pool.translate_tokens(tokens, out=out, out_width=out_width)
        allocations = _allocations(device) - allocations
    return Captured(graph, tokens, out, allocations)


def check_graph(device: torch.device, report: Report) -> None:
    """A captured ``translate_tokens`` follows the pages through flushes, and other tokens too."""
    for beyond in (0, 200):
        with report.check(f"CUDA graph: translate_tokens(out=), {beyond} beyond, after flushes"):
            _replayed(device, beyond)


def _replayed(device: torch.device, beyond: int) -> None:
    arena = arena_of(device, PREWARMED[0])
    arena.prewarm()
    pool = arena["full"]
    ids = pool.alloc(512)
    kept = ids[2::3].contiguous()
    tokens = kept * pool.page_size + torch.arange(kept.numel(), device=device) % pool.page_size
    made = captured(pool, tokens, tokens.numel() + beyond)
    require(made.allocations == 0, f"{made.allocations} allocations inside the capture")
    address = made.out.data_ptr()
    for freed in (ids[::3], ids[1::3]):
        before = wanted_of(pool, made)
        pool.free(freed)
        moves = pool.flush(urgent=True).moves
        require(moves > 0, "the flush moved no page")
        _require_replay(pool, made)
        require(not torch.equal(made.out, before), "the replay gives the old addresses")
    tokens.copy_(tokens.flip(0))
    tokens[3:7] = -1
    _require_replay(pool, made)
    require(made.out.data_ptr() == address, "the result moved")


def _require_replay(pool: MultiEndedAllocator, made: Captured) -> None:
    made.out.fill_(-1)
    made.graph.replay()
    finish(made.out.device)
    same = torch.equal(made.out, wanted_of(pool, made))
    require(same, "the replay gives other addresses than the table")


def wanted_of(pool: MultiEndedAllocator, made: Captured) -> torch.Tensor:
    """What a replay has to give now, by the table."""
    tokens, page_size = made.tokens, pool.page_size
    known = tokens.clamp(min=0)
    found = pool.virtual_to_physical[known // page_size] * page_size + known % page_size
    wanted = torch.zeros_like(made.out)
    wanted[: tokens.numel()] = torch.where(tokens < 0, 0, found)
    return wanted


def measure_graph(device: torch.device, sizes: Sizes, clock: Clock, report: Report) -> None:
    """A graph with room for 131,072 tokens that gets 8,192, beside one of that very size."""
    arena = arena_of(device, PREWARMED[0])
    arena.prewarm()
    pool = arena["full"]
    ids = pool.alloc(USED_TOKENS // pool.page_size)
    used = (ids[:, None] * pool.page_size + torch.arange(pool.page_size, device=device)).view(-1)
    padded = torch.full((CAPACITY_TOKENS,), -1, dtype=torch.int64, device=device)
    padded[: used.numel()] = used
    made = {what: captured(pool, tokens, tokens.numel(), LAUNCHES)
            for what, tokens in ((EXACT, used), (CAPACITY, padded))}  # fmt: skip
    for each in made.values():
        _require_replay(pool, each)
    runs: list[Callable[[], Any]] = [
        each.graph.replay for _ in range(sizes.repetitions + 2) for each in made.values()
    ]
    times = [us / LAUNCHES for us in clock.device_us(runs)]
    exact, capacity = times[2::2][1:], times[3::2][1:]
    case = {"tokens": USED_TOKENS}
    report.figure(GROUP, case, EXACT, "us", exact)
    report.figure(GROUP, case, CAPACITY, "us", capacity)
    ratio = sorted(b / a for a, b in zip(exact, capacity, strict=True))[len(exact) // 2]
    name = f"{GROUP}, {CAPACITY} and replayed on {USED_TOKENS:,}"
    report.target(name, CAPACITY_RATIO, ratio, "x", at_least=False)


def _allocations(device: torch.device) -> int:
    return int(torch.cuda.memory_stats(device).get("allocation.all.allocated", 0))

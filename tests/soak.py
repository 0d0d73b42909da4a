"""A soak: a full arena under heavy eviction, with fences that end at random, every byte checked.

Run as ``python -m tests.soak``. Exits 1 at the first mismatch.
"""

import sys
import time
from typing import NamedTuple

import click

from .allocator.driver import Driver
from .allocator.lending_world import LendingWorld
from .allocator.traffic import Traffic, chain_of

OCCUPANCY = 0.95
"""What the arena is filled to at least, at every moment."""

TOTAL_BYTES = 24_000


class SoakResult(NamedTuple):
    """What a soak did. Occupancy: live bytes as a part of all that is not sink."""

    calls: int
    moves: int
    moves_under_forwards: int
    flushes: int
    waits: int
    bound: int
    retired: int
    evictions: int
    min_occupancy: float
    mean_occupancy: float
    seconds: float


def soak(
    calls: int, seed: int = 1, backend: str = "host", deep_every: int = 2000, pools: int = 2
) -> SoakResult:
    """Make `calls` calls once the arena is full; raises at the first mismatch."""
    started = time.perf_counter()
    driven = Driver(LendingWorld(chain_of(pools, TOTAL_BYTES), backend), seed)
    traffic = Traffic(driven, driven.world.layout, seed, floor=OCCUPANCY)
    traffic.fill()
    lowest, total, steps, deep_at = traffic.occupancy, 0.0, 0, 0
    end = traffic.calls + calls
    while traffic.calls < end:
        traffic.step()
        driven.tick()
        if steps % 4 == 0:
            driven.sample()
        steps += 1
        total += traffic.occupancy
        lowest = min(lowest, traffic.occupancy)
        if traffic.calls >= deep_at:
            driven.world.check()
            deep_at += deep_every
    driven.world.drain()
    assert lowest >= OCCUPANCY, f"the arena was only {lowest:.1%} full"
    stats, counts = driven.world.arena.stats(), driven.world.counts
    return SoakResult(
        traffic.calls,
        stats.moves,
        counts["moves under forwards"],
        stats.flush_calls,
        stats.fence_waits,
        counts["bind"],
        counts["retire"],
        traffic.evictions,
        lowest,
        total / steps,
        time.perf_counter() - started,
    )


@click.command()
@click.option("--calls", default=1_000_000, show_default=True, help="Calls of the full arena.")
@click.option("--seed", default=1, show_default=True, help="What the calls follow from.")
@click.option("--backend", default="host", type=click.Choice(["host", "triton"]))
@click.option("--deep-every", default=2000, show_default=True, help="Calls between deep checks.")
@click.option(
    "--pools", default=2, show_default=True, type=click.IntRange(2, 4),
    help="Pools of the chain: with more than 2 the others borrow ids of the first.",
)  # fmt: skip
def main(calls: int, seed: int, backend: str, deep_every: int, pools: int) -> None:
    """Fill an arena, evict, move and write, and check every byte."""
    try:
        result = soak(calls, seed, backend, deep_every, pools)
    except Exception as error:
        click.echo(f"mismatch with --seed {seed}: {type(error).__name__}: {error}", err=True)
        sys.exit(1)
    for name, value in result._asdict().items():
        shown = f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
        click.echo(f"{name.replace('_', ' '):21}{shown}")


if __name__ == "__main__":
    main()

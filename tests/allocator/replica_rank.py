"""One process of a group of replicas: ``python -m tests.allocator.replica_rank``."""

import datetime
import json
from pathlib import Path

import click
import torch
import torch.distributed as dist

from .replica import TOTAL_BYTES, Rank, drive
from .traffic import chain_of


@click.command()
@click.option("--rank", type=int, required=True)
@click.option("--ranks", type=int, required=True)
@click.option("--calls", type=int, required=True)
@click.option("--meeting-point", type=click.Path(path_type=Path), required=True)
@click.option("--pools", type=click.IntRange(2, 4), default=2, help="Pools of the chain.")
@click.option("--odd-call", type=int, default=0, help="Number of a call that only rank 1 makes.")
def main(rank: int, ranks: int, calls: int, meeting_point: Path, pools: int, odd_call: int) -> None:
    """Make the calls that every rank makes, compare the answers, and say what was done."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=meeting_point.absolute().as_uri(),
        rank=rank,
        world_size=ranks,
        timeout=datetime.timedelta(seconds=60),
    )

    def least(value: int) -> int:
        lowest = torch.tensor(int(value))
        dist.all_reduce(lowest, dist.ReduceOp.MIN)
        return int(lowest)

    layout, haste = chain_of(pools, TOTAL_BYTES), (0.9, 0.1, 0.3, 0.02)[rank % 4]
    driven = Rank(100 + rank, haste, least, layout)
    compared = 0

    def compare(call: int) -> None:
        nonlocal compared
        if rank == 1 and 0 < odd_call <= call:
            driven.alloc("kv", 0)
        found: list[str | None] = [None] * ranks
        dist.all_gather_object(found, driven.answers.hexdigest())
        assert len(set(found)) == 1, f"after {call} calls the ranks disagree: {found}"
        compared += 1

    traffic = drive(driven, calls, seed=5, at=compare, every=500, layout=layout)
    stats = driven.world.arena.stats()
    done = {
        "calls": traffic.calls,
        "compared": compared,
        "evictions": traffic.evictions,
        "moves": stats.moves,
        "layout_version": stats.layout_version,
        "holds": driven.world.counts["block"] + driven.world.counts["lease"],
    }
    click.echo(json.dumps(done))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

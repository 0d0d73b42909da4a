"""Rows of the page tables that say something else than they should."""

import pytest
import torch

from kvdefrag import CorruptState

from .world import World


def break_row(world: World, name: str, victim: int, kind: int) -> set[int]:
    """Change one row of `victim` or of its page; returns the live ids that are then uncertain."""
    pool, live = world.arena[name], world.live[name]
    v2p, p2v = pool.virtual_to_physical, pool.physical_to_virtual
    place = int(v2p[victim])
    others = sorted(live.keys() - {victim})
    other = others[kind % len(others)] if others else None
    if kind == 0:
        v2p[victim] = -1
    elif kind == 1:
        p2v[place] = -1
    elif kind == 2:
        v2p[victim] = pool.num_pages + 5
    elif kind == 3:
        p2v[place] = v2p.numel() + 5
    elif kind == 4:
        v2p[victim] = -7
    elif kind == 5 and other is not None:
        p2v[place] = other
        return {victim, other}
    elif other is not None:
        v2p[victim] = int(v2p[other])
        return {victim, other}
    else:
        p2v[place] = victim + 1
    return {victim}


def require_stopped(world: World, met: bool) -> None:
    """Nothing but looking and repairing works any more, once a call has `met` the fault."""
    if not met:
        with pytest.raises(CorruptState):
            world.arena.check(deep=True)
        return
    for pool in world.arena.pools.values():
        calls = (lambda pool=pool: pool.alloc(1), pool.available, pool.flush)
        borrowing = (lambda pool=pool: pool.bind([1]), lambda pool=pool: pool.release([1]))
        for call in (*calls, *borrowing):
            with pytest.raises(CorruptState):
                call()
    with pytest.raises(CorruptState):
        world.arena.flush(urgent=True)
    with pytest.raises(CorruptState):
        world.arena.block_moves("late")
    world.arena.stats()
    for name in world.live:
        world.arena[name].translate(torch.tensor([1]))

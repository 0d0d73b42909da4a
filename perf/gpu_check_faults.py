"""Misuse and corruption on the device: the right error, and everything works afterwards."""

from __future__ import annotations

import torch

from kvdefrag import Arena

from .gpu_check_lockstep import Geometry, Lockstep, place, require_alive
from .gpu_check_report import Report, require
from .gpu_check_sizes import Sizes

PAGES = 9


def check_faults(device: torch.device, sizes: Sizes, report: Report) -> None:
    """Double free in two calls and in one, and tables that disagree."""
    geometry = sizes.geometries[0]
    with report.check("faults: a page freed twice"):
        _free_twice(device, geometry)
    with report.check("faults: a page twice in one call"):
        _twice_in_one_call(device, geometry)
    with report.check("faults: tables that disagree"):
        _corrupted_table(device, geometry)


def _ready(device: torch.device, geometry: Geometry) -> tuple[Lockstep, str, list[int]]:
    pair = Lockstep(device, geometry, seed=5)
    name = pair.names[0]
    _, ids = pair.both("alloc", lambda arena: arena[name].alloc(PAGES))
    pair.got(name, ids)
    return pair, name, ids


def _free_twice(device: torch.device, geometry: Geometry) -> None:
    pair, name, ids = _ready(device, geometry)
    for _ in range(2):
        pair.both("free", lambda arena: arena[name].free(place(arena, ids[3:4], torch.int64)))
    said, text = pair.both("check", lambda arena: arena.check())
    require(said == "raised" and "UsageError" in text, f"check {said} {text}")
    require(f"virtual id {ids[3]}" in text, f"the id is not named: {text}")
    require_alive(pair, name)


def _twice_in_one_call(device: torch.device, geometry: Geometry) -> None:
    """Which of the two lanes is refused is open, so the texts may differ in the index alone."""
    pair, name, ids = _ready(device, geometry)
    twice = [ids[2], ids[5], ids[2]]
    for arena in pair.arenas:
        arena[name].free(place(arena, twice, torch.int64))
        text = ""
        try:
            arena.check()
        except ValueError as error:
            text = str(error)
        require(f"virtual id {ids[2]}" in text, f"{arena.device}: {text or 'nothing raised'}")
    require_alive(pair, name)


def _corrupted_table(device: torch.device, geometry: Geometry) -> None:
    pair, name, ids = _ready(device, geometry)
    pair.both("free", lambda arena: arena[name].free(place(arena, ids[1:4], torch.int64)))

    def corrupt(arena: Arena) -> None:
        pool = arena[name]
        top = pool.translate(place(arena, ids[-1:], torch.int64))
        pool.physical_to_virtual[top] = ids[0]

    pair.both("corrupt", corrupt)
    pair.both("flush", lambda arena: arena[name].flush(urgent=True))
    pair.require_same_state("a flush that must not move anything")
    for _ in range(2):
        said, text = pair.both("check", lambda arena: arena.check())
        require(said == "raised" and "CorruptState" in text, f"check {said} {text}")
    said, text = pair.both("alloc", lambda arena: arena[name].alloc(1))
    require(said == "raised" and "CorruptState" in text, f"alloc {said} {text}")
    pair.both("clear", lambda arena: arena.clear())
    require_alive(pair, name)

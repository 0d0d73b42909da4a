"""Misuse and corruption on the device: the right error, and everything works afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import torch

from kvdefrag import Arena, CorruptState, MultiEndedAllocator, PoolSpec, UsageError
from kvdefrag.kernels.record import CORRUPT, MIRROR, RECORD_WORDS, USAGE

from .gpu_check_lockstep import Geometry, Lockstep, place, require_alive
from .gpu_check_machine import finish
from .gpu_check_report import Report, require
from .gpu_check_sizes import Sizes

PAGES = 9

Cause = Callable[[MultiEndedAllocator, torch.Tensor], int]

FAULT_WORDS = 7
"""Of a slot of the record."""


def check_faults(device: torch.device, sizes: Sizes, report: Report) -> None:
    """Double free in two calls and in one, and tables that disagree."""
    geometry = sizes.geometries[0]
    with report.check("faults: a page freed twice"):
        _free_twice(device, geometry)
    with report.check("faults: a page twice in one call"):
        _twice_in_one_call(device, geometry)
    with report.check("faults: tables that disagree"):
        _corrupted_table(device, geometry)
    for what, cause in (("refused id", _refuse), ("corrupt state", _corrupt)):
        with report.check(f"faults: a {what} shows on the host without a copy"):
            _mirrored(device, cause)
    with report.check("faults: an id bound twice in one call"):
        _bound_twice(device)


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


def _mirrored(
    device: torch.device, cause: Callable[[MultiEndedAllocator, torch.Tensor], int]
) -> None:
    """``cause`` makes the kernels record a fault, and gives the slot that it goes to."""
    arena = Arena(1 << 16, [PoolSpec("pages", page_bytes=1024)], device=device, backend="triton")
    pool, shared = arena["pages"], arena._shared
    if device.type == "cpu":
        second_record(arena)
    ids = pool.alloc(PAGES)
    finish(device)
    require(not shared.record.mirror[[USAGE.value, CORRUPT.value]].any(), "a fault to begin with")
    copies = arena.stats().device_to_host_copies
    slot = cause(pool, ids)
    finish(device)
    shown = shared.record.mirror[slot : slot + FAULT_WORDS].tolist()
    require(arena.stats().device_to_host_copies == copies, "it took a copy")
    recorded = shared.record.words[slot : slot + FAULT_WORDS].tolist()
    require(shown == recorded and shown[0] == 1, f"{shown} on the host, {recorded} on the device")
    if slot == CORRUPT.value:
        _require_stopped(arena, pool)
        arena.repair().release()
    else:
        require(pool.alloc(1).numel() == 1, "an allocation behind a refused id")
        with contextlib.suppress(UsageError):
            arena.check()
    require(not shared.record.mirror[slot], "it still shows afterwards")
    pool.alloc(3)
    arena.check(deep=True)


def second_record(arena: Arena) -> None:
    """On a CPU the record is its own mirror: make it another, as pinned memory is on a GPU."""
    record = arena._shared.record
    other = torch.zeros(RECORD_WORDS, dtype=torch.int64)
    record.words[MIRROR.value] = other.data_ptr()
    record.mirror = other.numpy()


def _refuse(pool: MultiEndedAllocator, ids: torch.Tensor) -> int:
    pool.free(ids[:1])
    pool.free(ids[:1])
    return int(USAGE.value)


def _corrupt(pool: MultiEndedAllocator, ids: torch.Tensor) -> int:
    pool.physical_to_virtual[pool.translate(ids[-1:])] = ids[:1]
    pool.free(ids[-1:])
    return int(CORRUPT.value)


def _require_stopped(arena: Arena, pool: MultiEndedAllocator) -> None:
    raised = ""
    try:
        pool.alloc(1)
    except CorruptState as error:
        raised = str(error)
    require("disagree" in raised, f"the next call: {raised or 'nothing raised'}")
    require(arena._shared.record.stopped is not None, "the arena goes on")


def _bound_twice(device: torch.device) -> None:
    """Which of the two lanes gets the page is open; it is one of them."""
    specs = [PoolSpec("full", page_bytes=512), PoolSpec("window", 512, 1, "down", ids_from="full")]
    arena = Arena(1 << 15, specs, device=device, backend="triton")
    full, window = arena["full"], arena["window"]
    ids = full.alloc(PAGES)
    window.bind(ids[[2, 5, 2]])
    text = ""
    try:
        arena.check()
    except UsageError as error:
        text = str(error)
    require(f"virtual id {int(ids[2])}" in text, text or "nothing raised")
    require(window.live_pages == 2, f"{window.live_pages} pages of two ids")
    window.bind(ids[3:5])
    window.release(ids[2:6])
    arena.check(deep=True)

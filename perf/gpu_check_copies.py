"""The copy kernels on the device against their host twins, and pages beyond 2**32 bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from kvdefrag.kernels.copy import Rebinding, copy_pages, copy_pages_host
from kvdefrag.kernels.layered import Layers, copy_pages_layered, copy_pages_layered_host
from kvdefrag.kernels.record import CORRUPT, RECORD_WORDS

from .gpu_check_machine import free_bytes
from .gpu_check_report import Report, require
from .gpu_check_sizes import GIB, MIB, Sizes

GUARD_BYTES = 1 << 15
"""More than a program writes, so that a lost mask meets a guard."""

CPU = torch.device("cpu")


def check_copies(device: torch.device, sizes: Sizes, report: Report) -> None:
    """Every page size at every buffer offset, many pages, and a stopped record."""
    for page_bytes in sizes.page_bytes:
        for offset in sizes.offsets:
            with report.check(f"copy_pages: {page_bytes}-byte pages, offset {offset}"):
                for rebinds in (False, True):
                    compare_copy(device, page_bytes, sizes.moves, offset, rebinds)
    for page_bytes in (16, 80):
        with report.check(f"copy_pages: {sizes.many_moves} pages of {page_bytes} bytes"):
            compare_copy(device, page_bytes, sizes.many_moves, 0, True)
    for page_bytes in (656, 16384 + 8):
        with report.check(f"copy_pages: {page_bytes}-byte pages, stopped record"):
            compare_copy(device, page_bytes, 3, 8, True, stopped=True)
    for name, row_bytes in LAYER_SHAPES.items():
        with report.check(f"copy_pages_layered: {name}"):
            compare_layered(device, row_bytes, sizes.moves)


def compare_copy(
    device: torch.device,
    page_bytes: int,
    moves: int,
    offset: int,
    rebinds: bool,
    stopped: bool = False,
) -> None:
    """One batch on the device and by the twin: every byte and every word, guards included."""
    draw = np.random.default_rng(page_bytes * 31 + offset)
    page_count = 2 * moves + 3
    start = GUARD_BYTES + offset
    end = start + page_count * page_bytes + 5
    filled = torch.from_numpy(draw.integers(0, 256, end + GUARD_BYTES, dtype=np.uint8))
    pages = torch.from_numpy(1 + draw.permutation(page_count - 1))
    sources, targets = pages[:moves], pages[moves : 2 * moves]
    virtual_ids = torch.from_numpy(1 + draw.permutation(page_count - 1)[:moves])
    sides = []
    operations: tuple[Any, ...] = ((device, copy_pages), (CPU, copy_pages_host))
    for place, operation in operations:
        whole = filled.to(place, copy=True)
        tables = [torch.arange(page_count, device=place) + 1000 * i for i in range(2)]
        record = torch.zeros(RECORD_WORDS, dtype=torch.int64, device=place)
        record[CORRUPT.value] = int(stopped)
        memory: list[Any] = [whole[start:end], record, virtual_ids.to(place), *tables]
        memory += [sources.to(place), targets.to(place)]
        if operation is copy_pages_host:
            memory = [part.numpy() for part in memory]
        buffer, record, ids, v2p, p2v, *pairs = memory
        rebinding = Rebinding(v2p, p2v, ids) if rebinds else None
        operation(buffer, *pairs, page_bytes, record, rebinding)
        sides.append([whole.cpu(), *(table.cpu() for table in tables)])
    for name, ours, twin in zip(("byte", "v2p row", "p2v row"), *sides, strict=True):
        _require_equal(f"rebinds={rebinds}: {name}", ours, twin)
    require(torch.equal(sides[0][0], filled) == stopped, "nothing was copied, or too much")


LAYER_SHAPES = {
    "small pages of three sizes": ((1152, 0), (656, 16), (80, 48)),
    "large pages of two sizes": ((65536, 0), (16384 + 8, 8), (4096, 0)),
    "odd pages": ((7, 0), (6635, 3)),
}
"""Page bytes and padding of every buffer."""


def compare_layered(device: torch.device, shapes: Sequence[tuple[int, int]], moves: int) -> None:
    """Several buffers in one launch, padding between pages included."""
    draw = np.random.default_rng(len(shapes))
    page_count = 2 * moves + 3
    pages = torch.from_numpy(1 + draw.permutation(page_count - 1))
    filled = [
        torch.from_numpy(draw.integers(0, 256, (page_count, row + padding), dtype=np.uint8))
        for row, padding in shapes
    ]
    sides: list[list[torch.Tensor]] = []
    for place in (device, CPU):
        wholes = [buffer.to(place, copy=True) for buffer in filled]
        layers = Layers([w[:, :row] for w, (row, _) in zip(wholes, shapes, strict=True)])
        sources, targets = (ids.to(place) for ids in (pages[:moves], pages[moves : 2 * moves]))
        record = torch.zeros(RECORD_WORDS, dtype=torch.int64, device=place)
        if len(sides) == 0:
            copy_pages_layered(layers, sources, targets, record)
        else:
            copy_pages_layered_host(layers, sources.numpy(), targets.numpy(), record.numpy())
        sides.append([whole.cpu().flatten() for whole in wholes])
    for index, (ours, twin) in enumerate(zip(*sides, strict=True)):
        _require_equal(f"buffer {index}, byte", ours, twin)


def check_beyond_32_bits(device: torch.device, report: Report) -> None:
    """Pages on both sides of 2**31 and of 2**32 bytes, copied across."""
    total_bytes = 4 * GIB + 64 * MIB
    for page_bytes in (656, 65536, 6635):
        name = f"copy_pages: {page_bytes}-byte pages beyond 2**32 bytes"
        if free_bytes(device) < 3 * total_bytes:
            report.skip(name, "not enough device memory")
            continue
        with report.check(name):
            buffer = torch.zeros(total_bytes, dtype=torch.uint8, device=device)
            _copy_across(buffer, page_bytes)
            del buffer


def _copy_across(buffer: torch.Tensor, page_bytes: int) -> None:
    half, whole, last = (at // page_bytes for at in (2**31, 2**32, buffer.numel() - page_bytes))
    sources = [1, half - 1, half, half + 1, whole - 1, whole, whole + 1, last]
    targets = [last - 3, whole + 5, 2, whole - 5, 3, half + 7, 4, half - 7]
    for number, page in enumerate(sources):
        _page(buffer, page, page_bytes).fill_(number + 1)
    wanted = buffer.clone()
    for source, target in zip(sources, targets, strict=True):
        _page(wanted, target, page_bytes).copy_(_page(buffer, source, page_bytes))
    ids = [torch.tensor(pages, device=buffer.device) for pages in (sources, targets)]
    record = torch.zeros(RECORD_WORDS, dtype=torch.int64, device=buffer.device)
    copy_pages(buffer, ids[0], ids[1], page_bytes, record)
    same = torch.equal(buffer.view(torch.int64), wanted.view(torch.int64))
    require(same, "the buffer is not what the moves make of it")


def _page(buffer: torch.Tensor, page: int, page_bytes: int) -> torch.Tensor:
    return buffer[page * page_bytes : (page + 1) * page_bytes]


def _require_equal(what: str, ours: torch.Tensor, twin: torch.Tensor) -> None:
    if not torch.equal(ours, twin):
        at = int((ours != twin).nonzero()[0])
        require(False, f"{what} {at}: {int(ours[at])} on the device, {int(twin[at])} by the twin")

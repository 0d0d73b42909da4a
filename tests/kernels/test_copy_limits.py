"""copy_pages at the seams of its batches and at the limits of a grid."""

from typing import Any, NamedTuple

import pytest
import torch

from kvdefrag.kernels import copy
from kvdefrag.kernels.copy import copy_pages, copy_pages_host
from kvdefrag.kernels.launch import MAX_PROGRAMS

from .byte_buffer import NO_FAULT, ByteBuffer, check_copy, random_moves

GIB = 1 << 30
SEAMS = (1, 3, 4, 5, 8, 9)


class Launch(NamedTuple):
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    constants: dict[str, int]


class Recorder:
    """Stands for a kernel: keeps the launches, and passes them on where there is one behind."""

    def __init__(self, kernel: Any = None) -> None:
        self.kernel = kernel
        self.launches: list[Launch] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def run(*arguments: Any, **constants: int) -> None:
            self.launches.append(Launch(grid, arguments, constants))
            if self.kernel is not None:
                self.kernel[grid](*arguments, **constants)

        return run


def record_launches(monkeypatch: pytest.MonkeyPatch, name: str, run: bool) -> Recorder:
    recorder = Recorder(getattr(copy, name) if run else None)
    monkeypatch.setattr(copy, name, recorder)
    return recorder


def on_meta(page_bytes: int, page_count: int, move_count: int, offset: int = 0) -> tuple[Any, ...]:
    """Arguments of ``copy_pages`` that take no memory."""
    buffer = torch.empty(page_bytes * page_count + offset, dtype=torch.uint8, device="meta")
    lists = torch.empty(2, move_count, dtype=torch.int64, device="meta")
    record = torch.empty(16, dtype=torch.int64, device="meta")
    return buffer[offset:], lists[0], lists[1], page_bytes, record


@pytest.mark.parametrize("move_count", SEAMS)
def test_seams_of_the_twin(move_count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy, "HOST_BATCH_BYTES", 4 * 80 + 79)
    check_copy(ByteBuffer(80, 25), *random_moves(25, move_count), interpret=False)
    monkeypatch.setattr(copy, "HOST_BATCH_BYTES", 79)
    check_copy(ByteBuffer(80, 25), *random_moves(25, move_count), interpret=False)


@pytest.mark.parametrize("move_count", SEAMS)
@pytest.mark.parametrize("page_bytes", [64, 80, 7])
def test_seams_of_the_flat_form(
    move_count: int, page_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """16 units a program: pages of 4 units fill it, pages of 5 and 7 straddle programs."""
    recorder = record_launches(monkeypatch, "_copy_flat_kernel", run=True)
    monkeypatch.setattr(copy, "FLAT_UNITS", 16)
    check_copy(ByteBuffer(page_bytes, 25), *random_moves(25, move_count))
    assert len(recorder.launches) == 1


@pytest.mark.parametrize("move_count", SEAMS)
@pytest.mark.parametrize("page_bytes", [1024, 1040, 1008, 1033])
def test_seams_of_the_chunked_form(
    move_count: int, page_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four chunks a page, one more, a cut one, and bytes."""
    recorder = record_launches(monkeypatch, "_copy_chunked_kernel", run=True)
    monkeypatch.setattr(copy, "CHUNKED_FROM_BYTES", 1000)
    monkeypatch.setattr(copy, "CHUNK_WORDS", 256 if page_bytes % 2 else 32)
    check_copy(ByteBuffer(page_bytes, 25), *random_moves(25, move_count))
    assert len(recorder.launches) == 1


def test_split_batch_moves_every_page(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = record_launches(monkeypatch, "_copy_flat_kernel", run=True)
    monkeypatch.setattr(copy, "MAX_UNITS", 2100)
    check_copy(ByteBuffer(64, 1301), *random_moves(1301, 600))
    assert [launch.arguments[-1] for launch in recorder.launches] == [2100, 300]


def test_batch_past_32_bits_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = record_launches(monkeypatch, "_copy_flat_kernel", run=False)
    page_bytes, most = 1023 * 16, (2**31 - 1) // 1023
    copy_pages(*on_meta(page_bytes, 10, most))
    assert len(recorder.launches) == 1
    copy_pages(*on_meta(page_bytes, 10, most + 5))
    first, second = recorder.launches[1:]
    assert first.arguments[-1] == most * 1023 < 2**31
    assert second.arguments[-1] == 5 * 1023
    assert second.grid == (10,)
    for argument in (1, 2):
        whole, rest = first.arguments[argument], second.arguments[argument]
        assert rest.storage_offset() == whole.storage_offset() + most
        assert (whole.numel(), rest.numel()) == (most, 5)


def test_70_000_pages_on_the_host() -> None:
    page_bytes, move_count = 4096, 70_000
    buffer = torch.empty(2 * move_count * page_bytes, dtype=torch.uint8)
    pages = buffer.view(torch.int64).view(2 * move_count, -1)
    torch.arange(pages[:move_count].numel(), out=pages[:move_count].view(-1))
    pages[move_count:] = -1
    sources = torch.arange(move_count)
    targets = 2 * move_count - 1 - sources
    arguments = (buffer.numpy(), sources.numpy(), targets.numpy())
    copy_pages_host(*arguments, page_bytes, NO_FAULT.numpy())
    assert torch.equal(pages[move_count:].flip(0), pages[:move_count])
    assert pages[0, 0] == 0
    assert pages[move_count - 1, -1] == move_count * page_bytes // 8 - 1


def test_70_000_pages_are_one_launch_on_x(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = record_launches(monkeypatch, "_copy_flat_kernel", run=False)
    copy_pages(*on_meta(4096, 200_000, 70_000))
    assert [launch.grid for launch in recorder.launches] == [(35_000,)]
    recorder = record_launches(monkeypatch, "_copy_chunked_kernel", run=False)
    copy_pages(*on_meta(65536, 200_000, 70_000))
    assert [launch.grid for launch in recorder.launches] == [(280_000,)]


@pytest.mark.parametrize(("page_bytes", "chunks"), [(3 * GIB // 2, 98_304), (GIB + 1, 524_289)])
def test_huge_page(page_bytes: int, chunks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = record_launches(monkeypatch, "_copy_chunked_kernel", run=False)
    copy_pages(*on_meta(page_bytes, 3, 1))
    copy_pages(*on_meta(page_bytes, 3, 7))
    assert [launch.grid for launch in recorder.launches] == [(chunks,), (7 * chunks,)]
    assert recorder.launches[0].arguments[-1] == chunks


def test_page_over_32_bits_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = record_launches(monkeypatch, "_copy_chunked_kernel", run=False)
    most = 2**31 - 1 - copy.CHUNK_WORDS
    copy_pages(*on_meta(most, 3, 1, offset=1))
    assert recorder.launches[0].grid == (2**20 - 1,)
    with pytest.raises(ValueError, match=rf"page_bytes: at most {most} .* got {most + 1}"):
        copy_pages(*on_meta(most + 1, 3, 1, offset=1))
    with pytest.raises(ValueError, match=rf"page_bytes: at most {most} .* got {2**34}"):
        copy_pages(*on_meta(2**34, 3, 1))
    assert len(recorder.launches) == 1


def test_grid_over_32_bits_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = record_launches(monkeypatch, "_copy_chunked_kernel", run=False)
    chunks = 98_304
    most = MAX_PROGRAMS // chunks
    copy_pages(*on_meta(3 * GIB // 2, 3, most))
    with pytest.raises(
        ValueError, match=rf"program_count: .*{MAX_PROGRAMS}.* {(most + 1) * chunks}"
    ):
        copy_pages(*on_meta(3 * GIB // 2, 3, most + 1))
    assert [launch.grid for launch in recorder.launches] == [(most * chunks,)]


@pytest.mark.parametrize("name", ["_copy_flat_kernel", "_copy_chunked_kernel"])
def test_no_moves_no_launch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = record_launches(monkeypatch, name, run=False)
    for page_bytes in (80, 65536):
        copy_pages(*on_meta(page_bytes, 3, 0))
    assert recorder.launches == []

"""copy_pages_layered: the pages of many buffers, each with its own size, stride and address."""

from typing import Any

import numpy as np
import pytest
import torch

from kvdefrag.kernels import layered
from kvdefrag.kernels.layered import Layers, copy_pages_layered, copy_pages_layered_host

from .byte_buffer import GUARD_BYTES, NO_FAULT, aligned_bytes, random_moves
from .interpreter import checked_memory, extent

NUM_PAGES = 9

# Per layer: bytes a page, bytes from page to page, address off 64.
SHAPES = {
    "alike, 16": [(64, 64, 0)] * 4,
    "one": [(80, 80, 0)],
    "uneven": [(64, 64, 0), (16, 48, 16), (656, 656, 0)],
    "gaps, 8": [(24, 40, 8), (8, 8, 0)],
    "odd": [(7, 7, 0), (33, 50, 3), (1, 1, 0)],
    "narrow, 4": [(20, 24, 4), (12, 12, 0)],
    "narrow, 2": [(20, 22, 0), (12, 12, 2)],
    "chunked": [(16384, 16384, 0), (16384 + 16, 16384 + 32, 16)],
    "chunked, 8": [(20480, 20480, 8)],
    "chunked and tiny": [(32768, 32768, 0), (8, 16, 8)],
    "chunked, odd": [(16385, 16386, 1)],
}


class Stack:
    """Layers in guarded memory, filled with random bytes."""

    def __init__(self, shapes: list[tuple[int, int, int]]) -> None:
        self.shapes = shapes
        self.memory = []
        for page_bytes, stride, offset in shapes:
            whole = aligned_bytes(2 * GUARD_BYTES + offset + NUM_PAGES * stride)
            random_bytes = np.random.default_rng(page_bytes).bytes(whole.numel())
            whole[:] = torch.frombuffer(bytearray(random_bytes), dtype=torch.uint8)
            self.memory.append(whole)

    def layers(self) -> Layers:
        views = [
            torch.as_strided(whole, (NUM_PAGES, page_bytes), (stride, 1), at)
            for whole, (page_bytes, stride, at) in zip(self.memory, self.places(), strict=True)
        ]
        return Layers(views)

    def places(self) -> list[tuple[int, int, int]]:
        return [
            (page_bytes, stride, whole.storage_offset() + GUARD_BYTES + offset)
            for whole, (page_bytes, stride, offset) in zip(self.memory, self.shapes, strict=True)
        ]

    def after(self, sources: list[int], targets: list[int]) -> list[bytes]:
        """What plain slicing makes of the memory."""
        result = []
        for whole, (page_bytes, stride, offset) in zip(self.memory, self.shapes, strict=True):
            before = whole.numpy().tobytes()
            data = bytearray(before)
            for source, target in zip(sources, targets, strict=True):
                start = GUARD_BYTES + offset + source * stride
                to = GUARD_BYTES + offset + target * stride
                data[to : to + page_bytes] = before[start : start + page_bytes]
            result.append(bytes(data))
        return result


def check_stack(name: str, sources: list[int], targets: list[int]) -> None:
    for way in (copy_pages_layered_host, copy_pages_layered):
        stack = Stack(SHAPES[name])
        wanted = stack.after(sources, targets)
        lists: list[Any] = [torch.tensor(pages, dtype=torch.int64) for pages in (sources, targets)]
        record: Any = NO_FAULT
        if way is copy_pages_layered_host:
            lists, record = [pages.numpy() for pages in lists], NO_FAULT.numpy()
        extents = [extent(m, GUARD_BYTES, m.numel() - GUARD_BYTES) for m in stack.memory]
        with checked_memory(*extents):
            way(stack.layers(), *lists, record)
        for layer, (whole, bytes_after) in enumerate(zip(stack.memory, wanted, strict=True)):
            assert whole.numpy().tobytes() == bytes_after, f"{way.__name__}: layer {layer}"


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("move_count", [0, 1, 4])
def test_every_layer_moves(name: str, move_count: int) -> None:
    check_stack(name, *random_moves(NUM_PAGES, move_count))


@pytest.mark.parametrize("name", ["uneven", "odd", "chunked and tiny"])
def test_first_and_last_page(name: str) -> None:
    check_stack(name, [0, NUM_PAGES - 1], [1, NUM_PAGES - 2])
    check_stack(name, [1, NUM_PAGES - 2], [0, NUM_PAGES - 1])


@pytest.mark.parametrize("name", ["alike, 16", "chunked"])
def test_corrupt_state_stops_the_copy(name: str) -> None:
    record = torch.zeros(16, dtype=torch.int64)
    record[8] = 1
    stack = Stack(SHAPES[name])
    wanted = stack.after([], [])
    pages = torch.tensor([2**62, 1])
    copy_pages_layered(stack.layers(), pages, pages, record)
    copy_pages_layered_host(stack.layers(), pages.numpy(), pages.numpy(), record.numpy())
    assert [whole.numpy().tobytes() for whole in stack.memory] == wanted


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.uint8, torch.bool])
@pytest.mark.parametrize("shape", [(), (3,), (2, 4, 8)])
def test_tensors_of_an_engine(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    for way in (copy_pages_layered_host, copy_pages_layered):
        generator = torch.Generator().manual_seed(0)
        size = (NUM_PAGES, *shape)
        bits = torch.randint(0, 2, size, generator=generator, dtype=torch.uint8)
        layer = bits.to(dtype) / 3 if dtype.is_floating_point else bits.to(dtype)
        wanted = layer.clone()
        wanted[torch.tensor([1, 2])] = layer[torch.tensor([7, 5])]
        arguments: list[Any] = [torch.tensor([7, 5]), torch.tensor([1, 2]), NO_FAULT]
        if way is copy_pages_layered_host:
            arguments = [argument.numpy() for argument in arguments]
        way(Layers([layer]), *arguments)
        assert torch.equal(layer, wanted), way.__name__


@pytest.mark.parametrize(
    ("buffers", "message"),
    [
        ([], "buffers: expected at least one"),
        ([torch.zeros(())], r"buffers\[0\]: expected "),
        ([torch.zeros(3, 4), torch.zeros(4, 4)], r"buffers\[1\]: expected \[3, .* got \[4, 4\]"),
        ([torch.zeros(3, 4), torch.zeros(3, 4, device="meta")], r"buffers\[1\]: .*cpu, got meta"),
        ([torch.zeros(3, 4, 5).transpose(1, 2)], r"buffers\[0\]: expected contiguous"),
        ([torch.zeros(1, 4).expand(3, 4)], r"buffers\[0\]: expected contiguous"),
        ([torch.zeros(3, 0)], r"buffers\[0\]: expected "),
    ],
)
def test_bad_buffers(buffers: list[torch.Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        Layers(buffers)


def on_meta(page_bytes: int, layer_count: int, move_count: int) -> tuple[Any, ...]:
    layer = torch.empty(3, page_bytes, dtype=torch.uint8, device="meta")
    lists = torch.empty(2, move_count, dtype=torch.int64, device="meta")
    record = torch.empty(16, dtype=torch.int64, device="meta")
    return Layers([layer] * layer_count), lists[0], lists[1], record


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    monkeypatch.setattr(layered, "launch", lambda _, count, *__, **___: counts.append(count))
    copy_pages_layered(*on_meta(4096, 32, 1000))
    copy_pages_layered(*on_meta(65536, 32, 1000))
    assert counts == [32 * 1000 * 256 // 512, 32 * 1000 * 4]
    with pytest.raises(ValueError, match=r"^sources: .*over 2147483647"):
        copy_pages_layered(*on_meta(8192, 64, 65_536))
    with pytest.raises(ValueError, match=rf"at most {2**31 - 1 - 2048} .*got {2**31 + 1}"):
        copy_pages_layered(*on_meta(2**31 + 1, 1, 1))

"""One compiled kernel and one kept handle for each variant, whatever the arguments of a call."""

from collections import Counter
from itertools import product
from typing import Any

import pytest
import torch
from triton import knobs
from triton.backends.compiler import GPUTarget

from kvdefrag.kernels import launch
from kvdefrag.kernels.bind import bind, unbind
from kvdefrag.kernels.borrow import bind_borrowed
from kvdefrag.kernels.copy import Rebinding, copy_pages
from kvdefrag.kernels.gather import gather_virtual
from kvdefrag.kernels.layered import Layers, copy_pages_layered
from kvdefrag.kernels.rebind import rebind
from kvdefrag.kernels.take import Take
from kvdefrag.kernels.token_extend import extend
from kvdefrag.kernels.token_free import unbind_tokens
from kvdefrag.kernels.token_group import Segment, unbind_group
from kvdefrag.kernels.token_grow import bind_tokens, decode
from kvdefrag.kernels.token_run import unbind_run
from kvdefrag.kernels.translate import translate, translate_tokens
from kvdefrag.kernels.zero import zero_pages

from .stand_in_driver import GFX942, KERNELS, SM_90, StandInDriver

COUNTS = (1, 2, 15, 16, 17, 1024)
OFFSETS = (0, 1, 2, 3)
STRIDES = (1, 2)
DTYPES = (torch.int32, torch.int64)

# Units of 16, 16, 16, 8, 4, 2 and 1 bytes.
PAGE_BYTES = (16, 48, 656, 24, 20, 6, 7)
LARGE = 16384
BUFFER = torch.zeros(4 * LARGE + 16, dtype=torch.uint8)
RECORD = torch.zeros(16, dtype=torch.int64)

VARIANTS = {
    "_bind_kernel": 1,
    "_gather_virtual_kernel": 1,
    "_rebind_kernel": 1,
    "_bind_borrowed_kernel": 2,  # by the dtype of the ids
    "_unbind_kernel": 4,  # by the dtype of the ids, and whether they are the pool's own
    "_translate_kernel": 2,
    "_translate_tokens_kernel": 8,  # by both dtypes, and 32-bit or 64-bit division
    "_bind_tokens_kernel": 1,
    "_unbind_group_kernel": 4,  # by 32-bit or 64-bit division, and whose the ids are
    "_unbind_tokens_kernel": 8,  # by the dtype of the ids, too
    "_unbind_run_kernel": 4,
    "_decode_kernel": 4,
    "_extend_kernel": 4,
    "_zero_kernel": 5,  # by the width of a unit
    "_copy_chunked_kernel": 10,  # by the width of a unit, with the tables and without
    "_copy_flat_kernel": 10,
    "_copy_layered_chunked_kernel": 5,
    "_copy_layered_flat_kernel": 5,
}


def words(count: int, offset: int) -> torch.Tensor:
    return torch.zeros(count + offset, dtype=torch.int64)[offset:]


def launch_tables(count: int, offset: int, stride: int) -> None:
    table, pairs = words(count + 9, offset), words(count, offset)
    gather_virtual(table, table, pairs, pairs, pairs, RECORD, count)
    rebind(table, table, pairs, pairs, pairs, RECORD)
    listed = count // 2
    take = Take(count, offset, listed, offset, 1, count, 1 - 2 * (offset % 2), 0, listed, count)
    bind(table, table, table, table, RECORD, take, offset)
    for dtype in DTYPES:
        ids = torch.zeros(count * stride + offset, dtype=dtype)[offset::stride]
        unbind(table, table, ids, table, offset, table, stride, RECORD, count << 8)
        rows = words(table.numel() * stride, offset).view(stride, -1)
        unbind(table, table, ids, table, offset, table, stride, RECORD, count, rows)
        unbind(table, table, ids, table, offset, None, 0, RECORD, count)
        one_more = take._replace(page_count=ids.numel())
        bind_borrowed(table, table, table, table, ids, table, RECORD, one_more, 1 + offset, count)
        translate(table, ids, count)
        for out_dtype, page_size in product(DTYPES, (1, 16, 2**28)):
            out = torch.zeros(count * stride + offset, dtype=out_dtype)[offset::stride]
            translate_tokens(table, ids, out, 1, page_size)


def launch_tokens(count: int, offset: int, stride: int) -> None:
    table = words(count + 9, offset)
    lists, slots = (table, table, RECORD), (table, offset, table, stride, RECORD)
    take = Take(count, 0, count // 2, 0, 1, count, 1, 0, count // 2, count)
    tables = (table, table)
    bind_tokens(*tables, *lists, take, count, stride, offset)
    for dtype, page_size in product(DTYPES, (1, 16, 2**28)):
        ids = torch.zeros(count * stride + offset, dtype=dtype)[offset::stride][:count]
        unbind_tokens(*tables, table, ids, page_size, count, *slots, 1 + offset, count)
        unbind_group(*tables, table, [Segment(ids, page_size)], count, *slots, 1 + offset, count)
        borrowed = (table, offset, None, 0, RECORD)
        unbind_tokens(*tables, table, ids, page_size, count, *borrowed, 1, count)
        unbind_group(*tables, table, [Segment(ids, page_size)], count, *borrowed, 1, count)
        unbind_run(*tables, ids, page_size, *slots, count)
        decode(*tables, ids, page_size, *lists, take, count)
        extend(*tables, ids, ids, ids, count, page_size, *lists, take, count)
    for page_bytes in PAGE_BYTES:
        zero_pages(BUFFER[:-16], page_bytes, *tables, table, RECORD, take)


def launch_copies(count: int, offset: int) -> None:
    table, pairs = words(count + 9, offset), words(count, offset)
    for page_bytes in (*PAGE_BYTES, *(LARGE + size for size in PAGE_BYTES)):
        copy_pages(BUFFER[:-16], pairs, pairs, page_bytes, RECORD)
        rebinding = Rebinding(table, table, pairs)
        copy_pages(BUFFER[16 * offset :], pairs, pairs, page_bytes, RECORD, rebinding)
        layer = BUFFER[: 2 * page_bytes].view(2, page_bytes)
        copy_pages_layered(Layers([layer] * (1 + offset)), pairs, pairs, RECORD)


def launch_mix() -> None:
    for count, offset in product(COUNTS, OFFSETS):
        for stride in STRIDES:
            launch_tables(count, offset, stride)
            launch_tokens(count, offset, stride)
        launch_copies(count, offset)


def handles() -> Counter[str]:
    names = {id(kernel): name for name, kernel in KERNELS.items()}
    return Counter(names[key[0]] for key in launch._handles)


def test_every_kernel_is_watched() -> None:
    assert set(VARIANTS) == set(KERNELS)


def test_one_handle_and_one_compiled_kernel_a_variant(gpu: StandInDriver) -> None:
    launch_mix()
    assert {name: len(kernel.device_caches[0][0]) for name, kernel in KERNELS.items()} == VARIANTS
    assert handles() == Counter(gpu.compiled) == Counter(gpu.loaded) == VARIANTS
    assert len(gpu.launches) > 20 * sum(VARIANTS.values())


@pytest.mark.parametrize("target", [SM_90, GFX942], ids=["sm_90", "gfx942"])
def test_triton_tells_no_more_variants_apart(
    target: GPUTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kept handle asks Triton only once. Here every call of the mix asks."""
    gpu = StandInDriver(target, compiles=False)
    gpu.install(monkeypatch)
    launch_mix()
    assert Counter(name for name, _ in gpu.keys) == VARIANTS
    assert len(gpu.compiled) > 20 * sum(VARIANTS.values())


@pytest.mark.parametrize("target", [SM_90, GFX942], ids=["sm_90", "gfx942"])
def test_kernel_for_a_small_buffer_is_right_for_a_large_one(
    target: GPUTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On AMD, Triton takes 32-bit offsets where a tensor is below 2 GiB when it compiles."""
    gpu = StandInDriver(target)
    gpu.install(monkeypatch)
    for gib in (1, 3):
        buffer = torch.empty(gib << 30, dtype=torch.uint8, device="meta")
        pairs, record = torch.empty(2, 16, dtype=torch.int64, device="meta")
        copy_pages(buffer, pairs, pairs, LARGE, record)
    assert len(gpu.launches) == 2
    assert len(gpu.compiled) == 1


def test_a_handle_for_other_arguments_is_noticed(gpu: StandInDriver) -> None:
    table, ids = words(9, 0), words(1, 0)
    translate(table, ids, 9)
    handle = next(iter(launch._handles.values()))
    grid, rest = (1, 1, 1), (1, 1, 9, 9, 128)
    handle[grid](table, ids, table, *rest)
    for wrong in (
        (table, ids.int(), table, *rest),
        (table, ids, table, 2**31, *rest[1:]),
        (table, ids, table, *rest[:-1], 64),
    ):
        with pytest.raises(TypeError, match="compiled for"):
            handle[grid](*wrong)
    assert len(gpu.launches) == 2


def test_profiler_hears_every_launch(gpu: StandInDriver) -> None:
    table, ids = words(9, 0), words(1, 0)
    heard: list[str] = []

    def listen(told: Any) -> None:
        heard.append(told.get()["name"])

    for hook in (knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook):
        hook.add(listen)
        try:
            for _ in range(3):
                translate(table, ids, 9)
        finally:
            hook.remove(listen)
        translate(table, ids, 9)
    assert heard == ["_translate_kernel"] * 6
    assert len(gpu.launches) == 8

"""One compiled variant a launcher and dtype: nothing else of a call reaches the compiler."""

from itertools import product

import pytest
import torch

from kvdefrag.kernels.bind import bind, unbind
from kvdefrag.kernels.borrow import bind_borrowed
from kvdefrag.kernels.copy import Rebinding, copy_pages
from kvdefrag.kernels.gather import gather_virtual
from kvdefrag.kernels.rebind import rebind
from kvdefrag.kernels.take import Take
from kvdefrag.kernels.token_extend import extend
from kvdefrag.kernels.token_free import unbind_tokens
from kvdefrag.kernels.token_group import Segment, unbind_group
from kvdefrag.kernels.token_grow import bind_tokens, decode
from kvdefrag.kernels.token_run import unbind_run
from kvdefrag.kernels.translate import translate, translate_tokens

from .aot import Launch, recorded_launches, signature
from .variants import LAUNCHES, TABLES, TAKE, TOKENS

COUNTS = (1, 2, 15, 16, 17, 1024)
OFFSETS = (0, 1, 2, 3)
STRIDES = (1, 2)


@pytest.mark.parametrize("name", LAUNCHES)
def test_kernel_specialises_on_nothing(name: str) -> None:
    launch = LAUNCHES[name]
    for parameter, kind in zip(launch.kernel.params, signature(launch).values(), strict=True):
        if kind.startswith("*"):
            assert parameter.do_not_specialize_on_alignment, parameter.name
        else:
            assert parameter.do_not_specialize or parameter.is_constexpr, parameter.name


@pytest.mark.parametrize("name", LAUNCHES)
def test_constants_come_in_the_order_of_the_signature(name: str) -> None:
    """A kept handle takes them by position."""
    launch = LAUNCHES[name]
    names = launch.kernel.arg_names
    assert list(launch.constants) == names[len(launch.arguments) :]


def launch_tokens(
    table: torch.Tensor, ids: torch.Tensor, page_size: int, take: Take, record: torch.Tensor
) -> None:
    count = ids.numel()
    slots, lists = (table, 0, table, 0, record), (table, table, record)
    bind_tokens(table, table, *lists, take, count, page_size, 1)
    unbind_tokens(table, table, table, ids, page_size, count, *slots, count, 1)
    unbind_group(table, table, table, [Segment(ids, page_size)], count, *slots, count, 1)
    borrowed = (table, 0, None, 0, record)
    unbind_tokens(table, table, table, ids, page_size, count, *borrowed, count, 1)
    unbind_group(table, table, table, [Segment(ids, page_size)], count, *borrowed, count, 1)
    unbind_run(table, table, ids, page_size, *slots, 1)
    decode(table, table, ids, page_size, *lists, take, 1)
    extend(table, table, ids, ids, ids, count, page_size, *lists, take, 1)


def mixed_launches() -> list[Launch]:
    """Many calls of every launcher, with lists that start and stride anywhere."""
    record = torch.zeros(16, dtype=torch.int64)
    with recorded_launches() as launches:
        for count, offset, stride in product(COUNTS, OFFSETS, STRIDES):
            table = torch.zeros(count + 9 + offset, dtype=torch.int64)[offset:]
            pairs = torch.zeros(count + offset, dtype=torch.int64)[offset:]
            gather_virtual(table, table, pairs, pairs, pairs, record, count)
            rebind(table, table, pairs, pairs, pairs, record)
            take = TAKE._replace(page_count=count, page_step=1 - 2 * (offset % 2))
            bind(table, table, table, table, record, take, offset)
            for page_bytes in (16, 48, 64, 656, 8, 24, 7, 16384, 16400, 65536):
                buffer = torch.zeros(page_bytes * 2 + offset, dtype=torch.uint8)[offset:]
                copy_pages(buffer, pairs, pairs, page_bytes, record)
                tables = Rebinding(table, table, pairs)
                copy_pages(buffer, pairs, pairs, page_bytes, record, tables)
            for dtype, out_dtype in product((torch.int32, torch.int64), repeat=2):
                ids = torch.zeros(count * stride + offset, dtype=dtype)[offset::stride]
                out = torch.zeros(count * stride + offset, dtype=out_dtype)[offset::stride]
                unbind(table, table, ids, table, 0, table, 0, record, 1, table.view(1, -1))
                unbind(table, table, ids, table, 0, None, 0, record, 1)
                bound = take._replace(page_count=ids.numel())
                bind_borrowed(table, table, table, table, ids, table, record, bound, count, 1)
                translate(table, ids, count)
                for page_size in (1, 16, 2**28):
                    translate_tokens(table, ids, out, 1, page_size)
                    launch_tokens(table, ids[:count], page_size, take, record)
    return launches


def test_variant_tells_everything_the_code_depends_on() -> None:
    codes: dict[tuple[object, ...], set[str]] = {}
    for launch in mixed_launches():
        key = (launch.kernel, launch.variant)
        codes.setdefault(key, set()).add(f"{signature(launch)} {launch.constants}")
    # With and without rebinding: units of 16, 8, 2 and 1 bytes flat, of 16, 2 and 1 chunked.
    assert len(codes) == len(TABLES) + len(TOKENS) + 2 * 4 + 2 * 3
    assert all(len(code) == 1 for code in codes.values())

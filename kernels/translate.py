"""translate and translate_tokens: from the ids an engine keeps to the places pages are at."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
import triton.language as tl

from .host import all_below
from .launch import LANES, Words, jit, launch, require_ids, require_words

MAX_INT32 = 2**31 - 1


@jit(
    do_not_specialize=["id_stride", "count", "num_ids", "num_pages"],
    do_not_specialize_on_alignment=["v2p", "ids", "out"],
)
def _translate_kernel(
    v2p, ids, out, id_stride, count, num_ids, num_pages, BLOCK: tl.constexpr
):  # fmt: skip
    lane = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = lane < count
    virtual = tl.load(ids + lane * id_stride, mask=live, other=0).to(tl.int64)
    in_range = live & (virtual >= 0) & (virtual < num_ids)
    page = tl.load(v2p + tl.where(in_range, virtual, 0), mask=in_range, other=0)
    page = tl.where((page >= 0) & (page < num_pages), page, 0)
    tl.store(out + lane, page, mask=live)


def translate(v2p: torch.Tensor, virtual_ids: torch.Tensor, num_pages: int) -> torch.Tensor:
    """Physical page ids of ``virtual_ids``, in one launch.

    Read: ``v2p`` int64 [virtual ids + 1]; ``virtual_ids`` int32 or int64 [ids], any stride.
    Returns int64 [ids]; an id that is unbound, negative or out of range gives 0, the sink, and so
    does a table entry outside ``0..num_pages - 1``. Raises ValueError for a wrong dtype or device.
    """
    out = torch.empty(virtual_ids.numel(), dtype=torch.int64, device=v2p.device)
    if out.numel() == 0:
        return out
    require_words("v2p", v2p, 1, v2p)
    require_ids("virtual_ids", virtual_ids, v2p)
    launch(
        _translate_kernel,
        -(-out.numel() // LANES),
        v2p, virtual_ids, out, virtual_ids.stride(0), out.numel(), v2p.numel(), num_pages,
        variant=(virtual_ids.dtype,),
        BLOCK=LANES,
    )  # fmt: skip
    return out


def translate_host(v2p: Words, virtual_ids: npt.NDArray[np.integer], num_pages: int) -> Words:
    """``translate`` on host memory."""
    if virtual_ids.size == 0:
        return np.empty(0, np.int64)
    if all_below(virtual_ids, v2p.size):
        pages: Words = v2p[virtual_ids]
        if all_below(pages, num_pages):
            return pages
    in_range = (virtual_ids >= 0) & (virtual_ids < v2p.size)
    pages = v2p[np.where(in_range, virtual_ids, 0)]
    return np.where(in_range & (pages >= 0) & (pages < num_pages), pages, 0)


@jit(
    do_not_specialize=[
        "row_stride", "id_stride", "out_row_stride", "out_stride", "blocks_per_row", "width",
        "out_width", "num_ids", "num_pages", "page_size",
    ],
    do_not_specialize_on_alignment=["v2p", "ids", "out"],
)  # fmt: skip
def _translate_tokens_kernel(
    v2p, ids, out, row_stride, id_stride, out_row_stride, out_stride, blocks_per_row, width,
    out_width, num_ids, num_pages, page_size,
    WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) // blocks_per_row
    block = tl.program_id(0) - row * blocks_per_row
    row = row.to(tl.int64)
    column = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = column < width
    token = tl.load(ids + row * row_stride + column * id_stride, mask=live, other=0).to(tl.int64)
    in_range = live & (token >= 0) & (token < num_ids.to(tl.int64) * page_size)
    token = tl.where(in_range, token, 0)
    if WIDE:
        virtual = token // page_size
    else:
        # A 64-bit division is a function call on a GPU, a 32-bit one a few instructions.
        virtual = (token.to(tl.int32) // page_size).to(tl.int64)
    page = tl.load(v2p + virtual, mask=in_range, other=-1)
    bound = (page >= 0) & (page < num_pages)
    place = tl.where(bound, page * page_size + (token - virtual * page_size), 0)
    tl.store(out + row * out_row_stride + column * out_stride, place, mask=column < out_width)


def translate_tokens(
    v2p: torch.Tensor,
    token_ids: torch.Tensor,
    out: torch.Tensor,
    num_pages: int,
    page_size: int,
) -> None:
    """Write the physical token ids of ``token_ids`` into ``out``, in one launch.

    Token ``t`` is token ``t % page_size`` of virtual page ``t // page_size``, and likewise for
    physical ids. Read: ``v2p`` int64 [virtual ids + 1]; ``token_ids`` int32 or int64 [tokens] or
    [rows, tokens], any strides. Written: ``out`` int32 or int64, as many dimensions and rows, any
    strides, values of ``num_pages * page_size - 1`` at most; where its rows are longer, the rest
    of them becomes 0. A token whose page is unbound, negative or out of range gives 0, in the sink.
    Raises ValueError for a wrong dtype, device or length, and for an int32 ``out`` that cannot hold
    every token id of the pool.
    """
    require_words("v2p", v2p, 1, v2p)
    require_ids("token_ids", token_ids, v2p, most_dimensions=2)
    require_ids("out", out, v2p, most_dimensions=2)
    if page_size > MAX_INT32:
        raise ValueError(f"page_size: at most {MAX_INT32} tokens, got {page_size}")
    width, out_width = token_ids.shape[-1], out.shape[-1]
    if out.shape[:-1] != token_ids.shape[:-1] or out_width < width:
        raise ValueError(
            f"out: expected {width} elements or more in each of {list(token_ids.shape[:-1])} rows, "
            f"got {list(out.shape)}"
        )
    if out.dtype == torch.int32 and num_pages * page_size > MAX_INT32:
        raise ValueError(
            f"out: int32 cannot hold the {num_pages * page_size} token ids of this pool"
        )
    if out.numel() == 0:
        return
    is_flat = token_ids.dim() == 1
    blocks_per_row = -(-out_width // LANES)
    is_wide = v2p.numel() * page_size > MAX_INT32
    launch(
        _translate_tokens_kernel,
        blocks_per_row if is_flat else out.shape[0] * blocks_per_row,
        v2p, token_ids, out,
        0 if is_flat else token_ids.stride(0), token_ids.stride(-1),
        0 if is_flat else out.stride(0), out.stride(-1),
        blocks_per_row, width, out_width, v2p.numel(), num_pages, page_size,
        variant=(token_ids.dtype, out.dtype, is_wide),
        WIDE=is_wide, BLOCK=LANES,
    )  # fmt: skip


def translate_tokens_host(
    v2p: Words,
    token_ids: npt.NDArray[np.integer],
    out: npt.NDArray[np.integer],
    num_pages: int,
    page_size: int,
) -> None:
    """``translate_tokens`` on host memory."""
    in_range = (token_ids >= 0) & (token_ids < v2p.size * page_size)
    token = np.where(in_range, token_ids, 0).astype(np.int64)
    page = v2p[token // page_size]
    bound = in_range & (page >= 0) & (page < num_pages)
    width = token_ids.shape[-1]
    out[..., :width] = np.where(bound, page * page_size + token % page_size, 0)
    out[..., width:] = 0

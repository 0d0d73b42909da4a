"""unbind_run: the pages of a run of tokens come back, no token twice and none looked at in vain."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
import triton.language as tl

from .distinct import pages_of_host, unbind_listed_host
from .host import unbind_good_host
from .lanes import _unbind_lanes
from .launch import LANES, Words, jit, launch, require_ids
from .record import TOKEN_OUT_OF_PLACE, TOKEN_OUT_OF_RANGE, _stopped, is_stopped_host
from .slots import holder_rows, require_free
from .token_free import FREE_NUMBERS, FREE_POINTERS, _page_of
from .translate import MAX_INT32


@jit(
    do_not_specialize=["head_stride", "page_size", *FREE_NUMBERS],
    do_not_specialize_on_alignment=["token_ids", *FREE_POINTERS],
)
def _unbind_run_kernel(
    v2p, p2v, holders, token_ids, holes, free_ids, record,
    head_stride, page_size, page_count, holder_count, holes_end, free_ids_end,
    num_pages, num_ids, call_tag,
    WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    if _stopped(record) != 0:
        return
    lane = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = lane < page_count
    at = tl.where(live, lane, 0) * head_stride
    token = tl.load(token_ids + at, mask=live, other=0).to(tl.int64)
    virtual, in_range = _page_of(token, live, num_ids, page_size, WIDE)
    in_place = in_range & (virtual * page_size == token)
    page, freed = _unbind_lanes(
        v2p, p2v, holders, record, tl.where(in_place, virtual, 0), live, lane,
        tl.where(in_place, virtual, token), holder_count, num_pages, num_ids, call_tag,
        tl.where(in_range, TOKEN_OUT_OF_PLACE, TOKEN_OUT_OF_RANGE),
    )  # fmt: skip
    tl.store(holes + holes_end + lane, page, mask=live)
    tl.store(free_ids + free_ids_end + lane, freed, mask=live)


def unbind_run(
    v2p: torch.Tensor,
    p2v: torch.Tensor,
    token_ids: torch.Tensor,
    page_size: int,
    holes: torch.Tensor,
    holes_end: int,
    free_ids: torch.Tensor,
    free_ids_end: int,
    record: torch.Tensor,
    call_tag: int,
    holders: torch.Tensor | None = None,
) -> None:
    """Take apart the pages of a run of tokens that starts with a page, in one launch.

    As ``unbind`` of the pages of tokens 0, ``page_size``, ``2 * page_size`` and so on of
    ``token_ids``, int32 or int64 [tokens], any stride; the last page may be cut short. Only these
    tokens are read. One that is not the first of its page is refused like an id out of range.
    Indices of faults count pages. Raises ValueError for a wrong dtype, device or length.
    """
    heads = token_ids[::page_size]
    page_count = heads.numel()
    if page_count == 0:
        return
    require_ids("token_ids", heads, v2p)
    require_free(v2p, p2v, page_count, holes, holes_end, free_ids, free_ids_end, record)
    rows, holder_count = holder_rows(v2p, holders)
    is_wide = v2p.numel() * page_size > MAX_INT32
    launch(
        _unbind_run_kernel,
        -(-page_count // LANES),
        v2p, p2v, rows, heads, holes, free_ids, record,
        heads.stride(0), page_size, page_count, holder_count, holes_end, free_ids_end,
        p2v.numel(), v2p.numel(), call_tag,
        variant=(token_ids.dtype, is_wide),
        WIDE=is_wide, BLOCK=LANES,
    )  # fmt: skip


def unbind_run_host(
    v2p: Words,
    p2v: Words,
    token_ids: npt.NDArray[np.integer],
    page_size: int,
    holes: Words,
    holes_end: int,
    free_ids: Words,
    free_ids_end: int,
    record: Words,
    call_tag: int,
    holders: Words | None = None,
) -> None:
    """``unbind_run`` on host memory."""
    heads = token_ids[::page_size]
    if heads.size == 0 or is_stopped_host(record):
        return
    ids, in_range, *_ = pages_of_host(heads, page_size, False, v2p.size)
    in_place = in_range & (ids * page_size == heads)
    pages = holes[holes_end : holes_end + heads.size]
    freed = free_ids[free_ids_end : free_ids_end + heads.size]
    freed[:] = ids
    if in_place.all() and unbind_good_host(v2p, p2v, freed, pages, holders):
        return
    rows = np.flatnonzero(in_place)
    index = rows[np.unique(ids[rows], return_index=True)[1]]
    code = np.where(in_range, TOKEN_OUT_OF_PLACE.value, TOKEN_OUT_OF_RANGE.value)
    pages[:], freed[:] = unbind_listed_host(
        v2p, p2v, np.where(in_place, ids, heads), index, in_place, ~in_place, code,
        record, call_tag, holders,
    )  # fmt: skip

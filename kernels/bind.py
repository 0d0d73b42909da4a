"""bind and unbind: pages are handed out and come back, one launch each."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
import triton.language as tl

from .host import FRESH_ROWS, bind_good_host, bind_run_host, unbind_good_host
from .lanes import _bind_lanes, _unbind_lanes
from .launch import LANES, Words, jit, launch, require_ids
from .record import ID_OUT_OF_RANGE, _stopped, is_stopped_host
from .refuse import bind_refusing_host, unbind_refusing_host
from .slots import freed_slots_host, holder_rows, require_free
from .take import Take, require_grow, taken_ids_host, taken_pages_host


@jit(
    do_not_specialize=[
        "page_count", "head", "head_count", "newer", "newer_count", "first_page", "page_step",
        "recycled", "recycled_count", "first_id", "back_page", "back_count",
        "num_pages", "num_ids", "call_tag",
    ],
    do_not_specialize_on_alignment=["v2p", "p2v", "out", "holes", "free_ids", "record"],
)  # fmt: skip
def _bind_kernel(
    v2p, p2v, out, holes, free_ids, record,
    page_count, head, head_count, newer, newer_count, first_page, page_step,
    recycled, recycled_count, first_id, back_page, back_count, num_pages, num_ids, call_tag,
    BLOCK: tl.constexpr,
):  # fmt: skip
    lane = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = lane < page_count
    virtual = _bind_lanes(
        v2p, p2v, holes, free_ids, record, lane, live,
        page_count, head, head_count, newer, newer_count, first_page, page_step,
        recycled, recycled_count, first_id, back_page, back_count, num_pages, num_ids, call_tag,
    )  # fmt: skip
    tl.store(out + lane, virtual, mask=live)


def bind(
    v2p: torch.Tensor,
    p2v: torch.Tensor,
    holes: torch.Tensor,
    free_ids: torch.Tensor,
    record: torch.Tensor,
    take: Take,
    call_tag: int,
) -> torch.Tensor:
    """Bind free virtual ids to free pages in one launch; returns the ids, int64 [page_count].

    Read: ``holes`` and ``free_ids`` int64 lists, at the places that ``take`` names. Read and
    written: ``v2p`` int64 [virtual ids + 1], ``p2v`` int64 [pages]: ``v2p[v] = p``, ``p2v[p] = v``.
    Written: ``record`` int64 [16], slot ``CORRUPT``, at the first page or id that is out of range
    or already bound.

    A pair with a void (-1) is skipped: its id stays unbound and 0, the sink, is returned for it. So
    it is for every bad pair, and for all of them once the record holds a corrupt state, in which
    case nothing is bound. Raises ValueError for a wrong dtype, device or length.
    """
    out = torch.empty(take.page_count, dtype=torch.int64, device=v2p.device)
    if take.page_count == 0:
        return out
    require_grow(v2p, v2p, p2v, holes, free_ids, record, take)
    launch(
        _bind_kernel,
        -(-take.page_count // LANES),
        v2p, p2v, out, holes, free_ids, record, *take, p2v.numel(), v2p.numel(), call_tag,
        BLOCK=LANES,
    )  # fmt: skip
    return out


def bind_host(
    v2p: Words,
    p2v: Words,
    holes: Words,
    free_ids: Words,
    record: Words,
    take: Take,
    call_tag: int,
) -> Words:
    """``bind`` on host memory."""
    return bind_taken_host(v2p, p2v, holes, free_ids, record, take, take.page_count, call_tag)


def bind_taken_host(
    v2p: Words,
    p2v: Words,
    holes: Words,
    free_ids: Words,
    record: Words,
    take: Take,
    used_count: int,
    call_tag: int,
) -> Words:
    """``bind_host`` of the first ``used_count`` pairs of ``take`` only."""
    out = taken_ids_host(free_ids, take)
    if used_count < take.page_count:
        out = out[:used_count]
    if used_count == 0:
        return out
    if is_stopped_host(record):
        out[:] = 0
        return out
    listed = take.head_count + take.newer_count
    is_run = used_count >= FRESH_ROWS and listed + take.back_count == 0
    if is_run and bind_run_host(v2p, p2v, out, take.first_page, take.page_step):
        return out
    pages = taken_pages_host(holes, take)
    if used_count < take.page_count:
        pages = pages[:used_count]
    if not bind_good_host(v2p, p2v, out, pages):
        bind_refusing_host(v2p, p2v, out, pages, record, call_tag)
    return out


@jit(
    do_not_specialize=[
        "id_stride", "page_count", "holder_count", "holes_end", "free_ids_end",
        "num_pages", "num_ids", "call_tag",
    ],
    do_not_specialize_on_alignment=[
        "v2p", "p2v", "holders", "virtual_ids", "holes", "free_ids", "record",
    ],
)  # fmt: skip
def _unbind_kernel(
    v2p, p2v, holders, virtual_ids, holes, free_ids, record,
    id_stride, page_count, holder_count, holes_end, free_ids_end, num_pages, num_ids, call_tag,
    LISTED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    if _stopped(record) != 0:
        return
    lane = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = lane < page_count
    virtual = tl.load(virtual_ids + lane * id_stride, mask=live, other=0).to(tl.int64)
    page, freed = _unbind_lanes(
        v2p, p2v, holders, record, virtual, live, lane, virtual,
        holder_count, num_pages, num_ids, call_tag, ID_OUT_OF_RANGE,
    )  # fmt: skip
    tl.store(holes + holes_end + lane, page, mask=live)
    if LISTED:
        tl.store(free_ids + free_ids_end + lane, freed, mask=live)


def unbind(
    v2p: torch.Tensor,
    p2v: torch.Tensor,
    virtual_ids: torch.Tensor,
    holes: torch.Tensor,
    holes_end: int,
    free_ids: torch.Tensor | None,
    free_ids_end: int,
    record: torch.Tensor,
    call_tag: int,
    holders: torch.Tensor | None = None,
) -> None:
    """Take ``virtual_ids`` apart from their pages in one launch and list both as free.

    Read: ``virtual_ids`` int32 or int64 [pages], any stride. Read and written: ``v2p`` int64
    [virtual ids + 1], ``p2v`` int64 [pages]: both rows become -1. Written: ``holes`` int64 from
    ``holes_end`` on, ``free_ids`` int64 from ``free_ids_end`` on, one slot an id, or None where
    the ids are another pool's and stay its own; ``record`` int64 [16]. ``holders``: v2p of the
    pools that borrow these ids, int64 [pools, virtual ids + 1], read.

    An id that is out of range, was never allocated, was freed before, in this call or earlier, or
    has a page in one of the ``holders`` is refused: no table row changes, both slots hold -1
    (void), the record's slot ``USAGE`` keeps the first. An atomic exchange finds duplicates without
    a sort, and no row -1 is ever written.
    An id whose rows disagree is refused likewise, into slot ``CORRUPT``; nothing at all happens
    once that slot is taken. Raises ValueError for a wrong dtype, device or length.
    """
    page_count = virtual_ids.numel()
    if page_count == 0:
        return
    require_ids("virtual_ids", virtual_ids, v2p)
    require_free(v2p, p2v, page_count, holes, holes_end, free_ids, free_ids_end, record)
    rows, holder_count = holder_rows(v2p, holders)
    is_listed = free_ids is not None
    launch(
        _unbind_kernel,
        -(-page_count // LANES),
        v2p, p2v, rows, virtual_ids, holes, free_ids if is_listed else holes, record,
        virtual_ids.stride(0), page_count, holder_count, holes_end, free_ids_end,
        p2v.numel(), v2p.numel(), call_tag,
        variant=(virtual_ids.dtype, is_listed),
        LISTED=is_listed, BLOCK=LANES,
    )  # fmt: skip


def unbind_host(
    v2p: Words,
    p2v: Words,
    virtual_ids: npt.NDArray[np.integer],
    holes: Words,
    holes_end: int,
    free_ids: Words | None,
    free_ids_end: int,
    record: Words,
    call_tag: int,
    holders: Words | None = None,
) -> None:
    """``unbind`` on host memory."""
    page_count = virtual_ids.size
    if page_count == 0 or is_stopped_host(record):
        return
    pages, ids = freed_slots_host(page_count, holes, holes_end, free_ids, free_ids_end)
    ids[:] = virtual_ids
    if not unbind_good_host(v2p, p2v, ids, pages, holders):
        unbind_refusing_host(v2p, p2v, ids, pages, record, call_tag, holders)

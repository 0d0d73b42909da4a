"""bind_borrowed: ids that another pool owns get pages here, in one launch."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
import triton.language as tl

from .host import bind_borrowed_good_host
from .lanes import _page_taken
from .launch import LANES, Words, jit, launch, require_ids, require_words
from .marks import _mark_of, require_marks
from .record import (
    CORRUPT,
    ID_BOUND_HERE,
    ID_NOT_LENT,
    ID_OUT_OF_RANGE,
    PAGE_OUT_OF_RANGE,
    PAGE_TAKEN,
    USAGE,
    _record_fault,
    _stopped,
    is_stopped_host,
    record_fault_host,
)
from .take import Take, require_take, taken_pages_host


@jit(
    do_not_specialize=["id_stride", *Take._fields, "num_pages", "num_ids", "serial", "call_tag"],
    do_not_specialize_on_alignment=[
        "v2p", "p2v", "lender_v2p", "marks", "virtual_ids", "holes", "record",
    ],
)  # fmt: skip
def _bind_borrowed_kernel(
    v2p, p2v, lender_v2p, marks, virtual_ids, holes, record, id_stride,
    page_count, head, head_count, newer, newer_count, first_page, page_step,
    recycled, recycled_count, first_id, back_page, back_count,
    num_pages, num_ids, serial, call_tag,
    BLOCK: tl.constexpr,
):  # fmt: skip
    if _stopped(record) != 0:
        return
    lane = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = lane < page_count
    at = tl.where(live, lane, 0) * id_stride
    virtual = tl.load(virtual_ids + at, mask=live, other=0).to(tl.int64)
    page = _page_taken(
        holes, lane, live,
        page_count, head, head_count, newer, newer_count, first_page, page_step,
        back_page, back_count,
    )  # fmt: skip
    whole = live & (page != -1)
    page_ok = whole & (page >= 1) & (page < num_pages)
    page_at = tl.where(page_ok, page, 0)
    owner = tl.load(p2v + page_at, mask=page_ok, other=-1)
    is_free = page_ok & (owner == -1)
    in_range = is_free & (virtual >= 1) & (virtual < num_ids)
    virtual_at = tl.where(in_range, virtual, 0)
    is_lent = in_range & (tl.load(lender_v2p + virtual_at, mask=in_range, other=-1) != -1)
    home = tl.load(v2p + virtual_at, mask=is_lent, other=-1)
    # Of two equal ids exactly one finds the mark of an earlier call, whatever lane or program.
    mark = _mark_of(lane, serial)
    before = tl.atomic_max(marks + virtual_at, mark, mask=is_lent)
    is_first = is_lent & (before < _mark_of(lane * 0 + 2147483647, serial))
    good = is_first & (home == -1)
    tl.store(v2p + virtual_at, page, mask=good)
    tl.store(p2v + page_at, virtual, mask=good)

    code = tl.where(page_ok, PAGE_TAKEN, PAGE_OUT_OF_RANGE)
    _record_fault(record, CORRUPT, whole & ~is_free, code, call_tag, lane, -1, page, virtual)
    code = tl.where(is_lent, ID_BOUND_HERE, ID_NOT_LENT)
    code = tl.where(in_range, code, ID_OUT_OF_RANGE)
    _record_fault(record, USAGE, is_free & ~good, code, call_tag, lane, -1, -1, virtual)


def bind_borrowed(
    v2p: torch.Tensor,
    p2v: torch.Tensor,
    lender_v2p: torch.Tensor,
    marks: torch.Tensor,
    virtual_ids: torch.Tensor,
    holes: torch.Tensor,
    record: torch.Tensor,
    take: Take,
    serial: int,
    call_tag: int,
) -> None:
    """Bind ``virtual_ids``, which another pool owns, to the free pages of ``take`` in one launch.

    Read: ``virtual_ids`` int32 or int64 [pages], any stride; ``lender_v2p`` int64 [virtual ids +
    1], the owner's; ``holes`` int64, at the places that ``take`` names (its ids do not count). Read
    and written: ``v2p`` int64 [virtual ids + 1], ``p2v`` int64 [pages]: ``v2p[v] = p``, ``p2v[p] =
    v``; ``marks`` and ``serial`` as in ``unbind_tokens``. ``record`` int64 [16].

    An id that is out of range, that its owner has not allocated, that has a page here, or that is
    there twice (all but one of them) is refused: its page stays free and in no list, the record's
    slot ``USAGE`` keeps the first. A void page (-1) is skipped. A page that is out of range or
    bound is recorded in slot ``CORRUPT``; nothing happens once that is taken. Raises ValueError for
    a wrong dtype, device or length.
    """
    if take.page_count == 0:
        return
    require_ids("virtual_ids", virtual_ids, v2p)
    if virtual_ids.numel() != take.page_count:
        raise ValueError(f"virtual_ids: expected {take.page_count}, got {virtual_ids.numel()}")
    require_take(v2p, v2p, p2v, holes, record, take)
    require_words("lender_v2p", lender_v2p, v2p.numel(), v2p)
    require_marks(marks, v2p, take.page_count, serial)
    launch(
        _bind_borrowed_kernel,
        -(-take.page_count // LANES),
        v2p, p2v, lender_v2p, marks, virtual_ids, holes, record, virtual_ids.stride(0), *take,
        p2v.numel(), v2p.numel(), serial, call_tag,
        variant=(virtual_ids.dtype,),
        BLOCK=LANES,
    )  # fmt: skip


def bind_borrowed_host(
    v2p: Words,
    p2v: Words,
    lender_v2p: Words,
    marks: Words,
    virtual_ids: npt.NDArray[np.integer],
    holes: Words,
    record: Words,
    take: Take,
    serial: int,
    call_tag: int,
) -> None:
    """``bind_borrowed`` on host memory, which needs no marks; of equal ids the first is bound."""
    if take.page_count == 0 or is_stopped_host(record):
        return
    ids, pages = virtual_ids.astype(np.int64), taken_pages_host(holes, take)
    if bind_borrowed_good_host(v2p, p2v, lender_v2p, ids, pages):
        return
    whole = pages != -1
    page_ok = whole & (pages >= 1) & (pages < p2v.size)
    is_free = page_ok & (p2v[np.where(page_ok, pages, 0)] == -1)
    in_range = is_free & (ids >= 1) & (ids < v2p.size)
    rows = np.where(in_range, ids, 0)
    is_lent = in_range & (lender_v2p[rows] != -1)
    lent = np.flatnonzero(is_lent)
    good = np.zeros(ids.size, np.bool_)
    good[lent[np.unique(ids[lent], return_index=True)[1]]] = True
    good &= v2p[rows] == -1
    v2p[ids[good]] = pages[good]
    p2v[pages[good]] = ids[good]
    record_fault_host(
        record, CORRUPT.value, whole & ~is_free, call_tag,
        code=np.where(page_ok, PAGE_TAKEN.value, PAGE_OUT_OF_RANGE.value),
        source=-1, target=pages, virtual=ids,
    )  # fmt: skip
    code = np.where(is_lent, ID_BOUND_HERE.value, ID_NOT_LENT.value)
    record_fault_host(
        record, USAGE.value, is_free & ~good, call_tag,
        code=np.where(in_range, code, ID_OUT_OF_RANGE.value),
        source=-1, target=-1, virtual=ids,
    )  # fmt: skip

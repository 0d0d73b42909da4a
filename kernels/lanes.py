"""What one lane does to bind or unbind one page: shared by the kernels that hand out and take back.

Scalars with the names of ``bind.Take``'s fields mean what they mean there.
"""

from __future__ import annotations

import triton.language as tl

from .launch import jit
from .record import (
    CORRUPT,
    ID_HELD,
    ID_NOT_BOUND,
    ID_OUT_OF_RANGE,
    ID_TAKEN,
    PAGE_OUT_OF_RANGE,
    PAGE_TAKEN,
    TABLES_DISAGREE,
    USAGE,
    _record_fault,
    _stopped,
)


@jit()
def _page_taken(
    holes, place, live,
    page_count, head, head_count, newer, newer_count, first_page, page_step, back_page, back_count,
):  # fmt: skip
    """Page at ``place`` of a take, -1 for a void."""
    listed = head_count + newer_count
    slot = tl.where(place < head_count, head + place, newer + (place - head_count))
    # A lane that is off points to the start of the list, wherever its place may be.
    slot = tl.where(live & (place < listed), slot, 0)
    page = tl.load(holes + slot, mask=live & (place < listed), other=-1)
    page = tl.where(place < listed, page, first_page + (place - listed) * page_step)
    back = place - (page_count - back_count)
    return tl.where(back < 0, page, back_page - back * page_step)


@jit()
def _taken(
    holes, free_ids, place, live,
    page_count, head, head_count, newer, newer_count, first_page, page_step,
    recycled, recycled_count, first_id, back_page, back_count,
):  # fmt: skip
    """Page and virtual id at ``place`` of a take, -1 for a void."""
    page = _page_taken(
        holes, place, live,
        page_count, head, head_count, newer, newer_count, first_page, page_step,
        back_page, back_count,
    )  # fmt: skip
    is_used = live & (place < recycled_count)
    virtual = tl.load(free_ids + tl.where(is_used, recycled + place, 0), mask=is_used, other=-1)
    virtual = tl.where(place < recycled_count, virtual, first_id + (place - recycled_count))
    return page, virtual


@jit()
def _bind_lanes(
    v2p, p2v, holes, free_ids, record, place, live,
    page_count, head, head_count, newer, newer_count, first_page, page_step,
    recycled, recycled_count, first_id, back_page, back_count, num_pages, num_ids, call_tag,
):  # fmt: skip
    """Bind the pair at ``place`` (int64) in every ``live`` lane: its virtual id, 0 if refused."""
    page, virtual = _taken(
        holes, free_ids, place, live,
        page_count, head, head_count, newer, newer_count, first_page, page_step,
        recycled, recycled_count, first_id, back_page, back_count,
    )  # fmt: skip
    # Broadcast the word, not its comparison: the interpreter widens a splat bool.
    runs = _stopped(record) + place * 0 == 0
    whole = live & (page != -1) & (virtual != -1) & runs
    page_ok = whole & (page >= 1) & (page < num_pages)
    in_range = page_ok & (virtual >= 1) & (virtual < num_ids)
    page_at = tl.where(in_range, page, 0)
    virtual_at = tl.where(in_range, virtual, 0)
    owner = tl.load(p2v + page_at, mask=in_range, other=-1)
    home = tl.load(v2p + virtual_at, mask=in_range, other=-1)
    good = in_range & (owner == -1) & (home == -1)
    tl.store(v2p + virtual_at, page, mask=good)
    tl.store(p2v + page_at, virtual, mask=good)

    code = tl.where(owner != -1, PAGE_TAKEN, ID_TAKEN)
    code = tl.where(in_range, code, ID_OUT_OF_RANGE)
    code = tl.where(page_ok, code, PAGE_OUT_OF_RANGE)
    _record_fault(record, CORRUPT, whole & ~good, code, call_tag, place, -1, page, virtual)
    # An id that got no page is not handed out: once it is free again it would have two owners.
    return tl.where(good, virtual, 0)


@jit()
def _held(holders, holder_count, virtual_at, asked, num_ids):
    """1 where an id ``asked`` for has a page in one of the ``holders``, else 0."""
    held = virtual_at * 0
    row = holder_count * 0
    while row < holder_count:
        place = row.to(tl.int64) * num_ids + virtual_at
        home = tl.load(holders + place, mask=asked, other=-1)
        held = tl.where(home != -1, 1, held)
        row += 1
    return held


@jit()
def _unbind_lanes(
    v2p, p2v, holders, record, virtual, live, index, named,
    holder_count, num_pages, num_ids, call_tag, outside,
):  # fmt: skip
    """Unbind ``virtual`` (int64) in every ``live`` lane: its page and id, -1 if refused.

    A refused id is recorded as ``named`` at ``index``; ``outside``: the code if it is out of range.
    """
    in_range = live & (virtual >= 1) & (virtual < num_ids)
    virtual_at = tl.where(in_range, virtual, 0)
    is_held = _held(holders, holder_count, virtual_at, in_range, num_ids) != 0
    asked = in_range & ~is_held
    # The exchange lets exactly one of two equal ids find the page, whatever lane or launch.
    page = tl.atomic_xchg(v2p + virtual_at, index * 0 - 1, mask=asked)
    page = tl.where(asked, page, -1)
    bound = page != -1
    page_ok = bound & (page >= 1) & (page < num_pages)
    page_at = tl.where(page_ok, page, 0)
    owner = tl.load(p2v + page_at, mask=page_ok, other=-1)
    good = page_ok & (owner == virtual)
    tl.store(p2v + page_at, index * 0 - 1, mask=good)

    disagree = bound & ~good
    tl.store(v2p + virtual_at, page, mask=disagree)
    _record_fault(record, CORRUPT, disagree, TABLES_DISAGREE, call_tag, index, page, -1, virtual)
    code = tl.where(is_held, ID_HELD, ID_NOT_BOUND)
    code = tl.where(in_range, code, outside)
    _record_fault(record, USAGE, live & ~bound, code, call_tag, index, -1, -1, named)
    return tl.where(good, page, -1), tl.where(good, virtual, -1)

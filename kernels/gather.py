"""gather_virtual: who owns the pages of a move batch, and is every pair fit to be moved."""

from __future__ import annotations

import torch
import triton.language as tl

from .host import gather_good_host
from .launch import LANES, Words, jit, launch, require_pairs, require_words
from .record import (
    CORRUPT,
    PAGE_OUT_OF_RANGE,
    PAGE_TAKEN,
    PAGE_UNBOUND,
    RECORD_WORDS,
    TABLES_DISAGREE,
    _record_fault,
)
from .refuse import gather_refusing_host


@jit(
    do_not_specialize=["pair_count", "num_pages", "num_ids", "call_tag"],
    do_not_specialize_on_alignment=["v2p", "p2v", "sources", "targets", "virtual_ids", "record"],
)
def _gather_virtual_kernel(
    v2p, p2v, sources, targets, virtual_ids, record,
    pair_count, num_pages, num_ids, call_tag,
    BLOCK: tl.constexpr,
):  # fmt: skip
    lane = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = lane < pair_count
    source = tl.load(sources + lane, mask=live, other=0)
    target = tl.load(targets + lane, mask=live, other=0)
    source_ok = live & (source >= 1) & (source < num_pages)
    target_ok = live & (target >= 1) & (target < num_pages)
    virtual = tl.load(p2v + tl.where(source_ok, source, 0), mask=source_ok, other=-1)
    occupant = tl.load(p2v + tl.where(target_ok, target, 0), mask=target_ok, other=-1)
    virtual_ok = source_ok & (virtual >= 1) & (virtual < num_ids)
    back = tl.load(v2p + tl.where(virtual_ok, virtual, 0), mask=virtual_ok, other=-1)
    good = virtual_ok & (back == source) & target_ok & (occupant == -1)
    tl.store(virtual_ids + lane, tl.where(good, virtual, -1), mask=live)
    code = tl.where(occupant != -1, PAGE_TAKEN, TABLES_DISAGREE)
    code = tl.where(virtual == -1, PAGE_UNBOUND, code)
    code = tl.where(source_ok & target_ok, code, PAGE_OUT_OF_RANGE)
    _record_fault(record, CORRUPT, live & ~good, code, call_tag, lane, source, target, virtual)


def gather_virtual(
    v2p: torch.Tensor,
    p2v: torch.Tensor,
    sources: torch.Tensor,
    targets: torch.Tensor,
    virtual_ids: torch.Tensor,
    record: torch.Tensor,
    call_tag: int,
) -> None:
    """Look up the owner of every source page and validate every pair, in one launch.

    Read: ``v2p`` int64 [virtual ids + 1], ``p2v`` int64 [pages], ``sources`` and ``targets``
    int64 [moves]: physical page ids, expected in ``1..pages - 1``.
    Written: ``virtual_ids`` int64 [moves], the owner of each source, -1 for a bad pair; ``record``
    int64 [16], slot ``CORRUPT``, the first bad pair.

    A pair is good if both ids are in range, the source is bound, ``v2p[p2v[source]] == source``
    and the target is unbound. No address is formed from an id that was not checked. Ids are not
    checked on the host, since that would wait for the device. ``call_tag`` is kept in the record.
    Raises ValueError for a wrong dtype, device or length.
    """
    move_count = sources.numel()
    if move_count == 0:
        return
    require_words("v2p", v2p, 1, v2p)
    require_words("p2v", p2v, 1, v2p)
    require_pairs(sources, targets, v2p)
    require_words("virtual_ids", virtual_ids, move_count, v2p)
    require_words("record", record, RECORD_WORDS, v2p)
    launch(
        _gather_virtual_kernel,
        -(-move_count // LANES),
        v2p, p2v, sources, targets, virtual_ids, record,
        move_count, p2v.numel(), v2p.numel(), call_tag,
        BLOCK=LANES,
    )  # fmt: skip


def gather_virtual_host(
    v2p: Words,
    p2v: Words,
    sources: Words,
    targets: Words,
    virtual_ids: Words,
    record: Words,
    call_tag: int,
) -> None:
    """``gather_virtual`` on host memory."""
    if sources.size and not gather_good_host(v2p, p2v, sources, targets, virtual_ids):
        gather_refusing_host(v2p, p2v, sources, targets, virtual_ids, record, call_tag)

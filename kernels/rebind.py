"""rebind: the page tables follow the bytes of a move batch."""

from __future__ import annotations

import numpy as np
import torch
import triton.language as tl

from .launch import LANES, Words, jit, launch, require_pairs, require_words
from .record import RECORD_WORDS, _stopped, is_stopped_host


@jit()
def _rebind_pairs(v2p, p2v, source, target, virtual, mask):
    tl.store(v2p + virtual, target, mask=mask)
    tl.store(p2v + target, virtual, mask=mask)
    tl.store(p2v + source, tl.full(source.shape, -1, tl.int64), mask=mask)


@jit()
def _rebind_share(v2p, p2v, sources, targets, virtual_ids, pair_count, BLOCK: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * BLOCK
    while first < pair_count:
        lane = first + tl.arange(0, BLOCK)
        live = lane < pair_count
        source = tl.load(sources + lane, mask=live, other=0)
        target = tl.load(targets + lane, mask=live, other=0)
        virtual = tl.load(virtual_ids + lane, mask=live, other=0)
        _rebind_pairs(v2p, p2v, source, target, virtual, live & (virtual >= 1))
        first += tl.num_programs(0).to(tl.int64) * BLOCK


@jit(
    do_not_specialize=["pair_count"],
    do_not_specialize_on_alignment=["v2p", "p2v", "sources", "targets", "virtual_ids", "record"],
)
def _rebind_kernel(
    v2p, p2v, sources, targets, virtual_ids, record, pair_count, BLOCK: tl.constexpr
):  # fmt: skip
    lane = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = lane < pair_count
    stopped = live & (_stopped(record) + lane * 0 != 0)
    source = tl.load(sources + lane, mask=live, other=0)
    target = tl.load(targets + lane, mask=live, other=0)
    virtual = tl.load(virtual_ids + lane, mask=live, other=-1)
    move = live & (virtual >= 1) & ~stopped
    _rebind_pairs(
        v2p, p2v, tl.where(move, source, 0), tl.where(move, target, 0),
        tl.where(move, virtual, 0), move,
    )  # fmt: skip
    tl.store(sources + lane, lane * 0, mask=stopped)
    tl.store(targets + lane, lane * 0, mask=stopped)


def rebind(
    v2p: torch.Tensor,
    p2v: torch.Tensor,
    sources: torch.Tensor,
    targets: torch.Tensor,
    virtual_ids: torch.Tensor,
    record: torch.Tensor,
) -> None:
    """Point the tables at the new places of moved pages: the v2p inverse update, in one launch.

    For every move: ``v2p[v] = target``, ``p2v[target] = v``, ``p2v[source] = -1``.

    Read: ``sources``, ``targets`` int64 [moves], physical page ids, and ``virtual_ids``
    int64 [moves], all as ``gather_virtual`` validated them; ``record`` int64 [16].
    Written: ``v2p`` int64 [virtual ids + 1] and ``p2v`` int64 [pages].

    If ``record`` holds a corrupt state the tables stay as they are and every pair becomes (0, 0),
    the sink onto itself, so that whatever runs next on these pairs moves nothing.
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
        _rebind_kernel,
        -(-move_count // LANES),
        v2p, p2v, sources, targets, virtual_ids, record, move_count,
        BLOCK=LANES,
    )  # fmt: skip


def rebind_host(
    v2p: Words,
    p2v: Words,
    sources: Words,
    targets: Words,
    virtual_ids: Words,
    record: Words,
) -> None:
    """``rebind`` on host memory."""
    if sources.size == 0:
        return
    if is_stopped_host(record):
        sources[:] = 0
        targets[: sources.size] = 0
        return
    virtual = virtual_ids[: sources.size]
    if np.minimum.reduce(virtual) < 1:
        good = virtual >= 1
        sources, targets, virtual = sources[good], targets[good], virtual[good]
    v2p[virtual] = targets
    p2v[targets] = virtual
    p2v[sources] = -1

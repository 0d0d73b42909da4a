"""SGLang's flush and commit with ``plan_moves`` and the kernels, on SGLang's own state.

Its tables, lists, watermark, counters, history and pending pages end as its own code leaves them,
with one exception: a page that was freed while the forward in flight will still write it is no
target of a move. Nothing of SGLang's is imported here; its names are those of 0.5.23.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from kvdefrag.kernels.launch import Words

from .plan import plan_moves
from .sglang_pool import EnginePool, Moved, ascending_depths_host

_NONE: Words = np.empty(0, np.int64)
_NONE.flags.writeable = False


def launched(pool: EnginePool, allocator: Any) -> None:
    """Fix the physical ids that the forward just set in flight will write: one launch, no copy.

    Raises CorruptState for a fault that shows without a copy.
    """
    pool.record.raise_if_stopped()
    inflight = allocator._inflight_forward
    pool.launched = None if inflight is None else (inflight, _translate(allocator, inflight[1]))


def flush(pool: EnginePool, allocator: Any, urgent: bool) -> int:
    """``_flush`` of a lazy end pool whose moves are not blocked; returns the number of moves.

    One read-back before anything waits or changes, and one upload at most. Raises CorruptState,
    before a page moves, for a fault of an earlier move or a broken hole list.
    """
    free = allocator._free_phys_pages
    pages, written, fired = _NONE, [], False
    if free.numel() or allocator._pending_reuse:
        if urgent or allocator._inflight_forward is None:
            (pages,) = pool.snapshot([free])
        else:
            writes, fired = _writes(pool, allocator)
            pages, *written = pool.snapshot([free, *writes])
    allocator._wait_hicache_transfers()
    allocator._stats_n_flush_calls += 1
    pages = _with_drained(allocator, pages, urgent)
    span = pool.geometry.depth(allocator.watermark_physical)
    holes = pool.holes(pages, span) if pages.size else _NONE
    if urgent:
        moves = _pack(pool, allocator, holes, span)
    else:
        moves = _pack_some(pool, allocator, holes, span, written, fired)
    if moves:
        allocator._stats_n_flush_did_work += 1
        allocator._stats_n_flush_moves += moves
    allocator._maybe_emit_stats()
    return moves


def commit(
    pool: EnginePool,
    allocator: Any,
    sources: Sequence[int],
    targets: Sequence[int],
    latest_event: Any,
    released: list[torch.Tensor],
) -> None:
    """``_commit_move_batch`` of physical pages, at least one pair; moves are not blocked."""
    pool.record.raise_if_stopped()
    depth = pool.geometry.depth
    moved = _move(pool, allocator, depth(np.asarray(sources)), depth(np.asarray(targets)), _NONE)
    if _is_done(latest_event):
        released.append(moved.sources)
    else:
        _park(allocator, latest_event, list(sources), moved.sources)


def _pack(pool: EnginePool, allocator: Any, holes: Words, span: int) -> int:
    """The urgent pass: every hole goes to the neighbours, no source waits for a reader."""
    if holes.size == 0:
        return 0
    plan = plan_moves(holes, span)
    moves = plan.sources.size
    if moves:
        # The stream waits, not the host: the snapshot has been taken.
        allocator._settle_inflight_forward()
        _move(pool, allocator, plan.sources, plan.targets, _NONE)
    allocator.watermark_physical = pool.geometry.page(plan.span_after)
    allocator._free_phys_pages = pool.no_pages
    allocator._stats_n_pages_absorbed += holes.size
    return moves


def _pack_some(
    pool: EnginePool,
    allocator: Any,
    holes: Words,
    span: int,
    written: Sequence[Words],
    fired: bool,
) -> int:
    """The idle pass: trailing holes are absorbed, then up to the cap is moved; the span stays.

    ``written``: see ``_writes``; ``fired``: that forward is done.
    """
    absorbed = _trailing(holes, span)
    span -= absorbed
    holes = holes[: holes.size - absorbed]
    kept = _pending_depths(pool, allocator, span)
    stop_depth, passed_over = -1, _NONE
    if holes.size and span > holes.size + kept.size:
        if fired:
            allocator._inflight_forward = None
        elif written:
            stop_depth, passed_over = _hazards(pool, allocator, holes, span, written)
    usable = holes
    if passed_over.size:
        usable = np.setdiff1d(holes, passed_over, assume_unique=True)
        kept = np.sort(np.concatenate((kept, passed_over)))
    # The walk looks at its cap after a move, so that a cap of zero still moves one page.
    limit = max(1, allocator._lazy_max_moves_per_call)
    around = bool(kept.size) or stop_depth >= 0
    plan = plan_moves(usable, span, limit, kept, stop_depth, sources_stay=around)
    moves = plan.sources.size
    remaining = usable[moves:]
    if passed_over.size:
        remaining = np.sort(np.concatenate((remaining, passed_over)))
    if not holes.size:
        free = pool.no_pages
    else:
        moved = _move(pool, allocator, plan.sources, plan.targets, remaining)
        free = _retire(pool, allocator, plan.sources, remaining.size, moved)
    allocator.watermark_physical = pool.geometry.page(span)
    allocator._free_phys_pages = free
    allocator._stats_n_pages_absorbed += absorbed
    return moves


def _pending_depths(pool: EnginePool, allocator: Any, span: int) -> Words:
    pending = allocator._pending_reuse_pages_cpu
    if not pending:
        return _NONE
    return ascending_depths_host(pool, np.fromiter(pending, np.int64, len(pending)), span)


def _move(pool: EnginePool, allocator: Any, sources: Words, targets: Words, holes: Words) -> Moved:
    moved = pool.move(sources, targets, holes)
    if sources.size:
        if not pool.copies:
            allocator._move_pages(moved.sources, moved.targets)
        allocator._inverse_history.append((moved.sources, moved.targets, moved.virtual_ids))
    return moved


def _retire(
    pool: EnginePool, allocator: Any, sources: Words, holes: int, moved: Moved
) -> torch.Tensor:
    """The hole list after an idle pass: with the sources, unless a reader may be at them."""
    listed = moved.list_with_sources
    if sources.size:
        latest_event = allocator._latest_forward_done_event
        if _is_done(latest_event):
            allocator._stats_n_release_batch += 1
        else:
            _park(allocator, latest_event, _list_host(pool.geometry.page(sources)), moved.sources)
            listed = listed[:holes]
    return pool.backend.tensor(listed)


def _park(allocator: Any, event: Any, pages: list[int], on_device: torch.Tensor) -> None:
    parked, batches = allocator._pending_reuse.setdefault(event, ([], []))
    parked.extend(pages)
    batches.append(on_device)
    allocator._pending_reuse_pages_cpu.update(pages)


def _list_host(pages: Words) -> list[int]:
    ids: list[int] = pages.tolist()
    return ids


def _is_done(event: Any) -> bool:
    return event is None or bool(event.query())


def _with_drained(allocator: Any, pages: Words, urgent: bool) -> Words:
    """``pages`` and what SGLang takes back of its pending pages, which the host knows by heart."""
    before = dict(allocator._pending_reuse)
    allocator._drain_pending_reuse(urgent=urgent)
    if not before:
        return pages
    drained = [
        parked for event, (parked, _) in before.items() if event not in allocator._pending_reuse
    ]
    return np.concatenate((pages, *map(np.array, drained))) if drained else pages


def _writes(pool: EnginePool, allocator: Any) -> tuple[list[torch.Tensor], bool]:
    """The physical token ids that the forward in flight writes; and whether it is done by now.

    First by the tables of now, where ids freed since read as the sink; then, where the plugin saw
    the launch, as they were then. None of a forward that is done.
    """
    inflight, seen = allocator._inflight_forward, pool.launched
    if inflight[0].query():
        return [], True
    writes = [_translate(allocator, inflight[1])]
    if seen is not None and seen[0] is inflight:
        writes.append(seen[1])
    return writes, False


def _translate(allocator: Any, virtual_tokens: torch.Tensor) -> torch.Tensor:
    """Physical token ids; under context parallelism SGLang's virtual ids are widened."""
    widened = allocator.page_size // allocator.pool_page_size
    if widened > 1:
        virtual_tokens = virtual_tokens // widened
    tokens: torch.Tensor = allocator.translate_kv_loc(virtual_tokens)
    return tokens.reshape(-1)


def _hazards(
    pool: EnginePool, allocator: Any, holes: Words, span: int, written: Sequence[Words]
) -> tuple[int, Words]:
    """The highest live page that will be written, -1 for none, and the holes that will be."""
    page_size = allocator.pool_page_size
    depths = [ascending_depths_host(pool, tokens // page_size, span) for tokens in written]
    stop_depth = int(depths[0][-1]) if depths[0].size else -1
    return stop_depth, depths[-1][np.isin(depths[-1], holes, assume_unique=True)]


def _trailing(holes: Words, span: int) -> int:
    """How many of the ascending ``holes`` form a run that ends at the frontier."""
    inner = bisect_left(
        range(holes.size), span - holes.size, key=lambda index: int(holes[index]) - index
    )
    return holes.size - inner

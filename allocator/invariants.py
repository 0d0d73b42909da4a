"""Every rule of an arena as a named check that returns its violations.

The checks read tables and lists back from the device and recount from them; none trusts a counter
that it checks. A violation is a sentence with the pool and the numbers that disagree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import torch

from kvdefrag.kernels.backend import Operand
from kvdefrag.kernels.launch import Words

from .band import Band
from .capacity import Capacity
from .free_pages import BorrowedIds, IdList


def table_violations(band: Band) -> list[str]:
    """``p2v[v2p[v]] == v`` for every bound id and back; row 0 is the sink and nothing else."""
    v2p, p2v = _tables(band)
    pool = f"pool {band.spec.name!r}"
    found = []
    if v2p[0] != 0 or p2v[0] != 0:
        found.append(f"{pool}: the sink rows are v2p[0]={v2p[0]} and p2v[0]={p2v[0]}, not 0")
    for name, forth, inverse, back in (("v2p", v2p, "p2v", p2v), ("p2v", p2v, "v2p", v2p)):
        rows = 1 + np.flatnonzero(forth[1:] != -1)
        value = forth[rows]
        in_range = (value >= 1) & (value < back.size)
        wrong = ~in_range | (back[np.where(in_range, value, 0)] != rows)
        for row in rows[wrong][:3].tolist():
            there = back[forth[row]] if 1 <= forth[row] < back.size else "out of range"
            found.append(f"{pool}: {name}[{row}] is {forth[row]}, {inverse} there is {there}")
    depths = band.geometry.depth(np.flatnonzero(p2v > 0))
    for depth in depths[(depths < 0) | (depths >= band.span)][:3].tolist():
        page = band.geometry.page(depth)
        found.append(f"{pool}: page {page} is bound outside the band of {band.span} pages")
    return found


def partition_violations(band: Band) -> list[str]:
    """Each page of the band is exactly one of live, hole and pending, and the counts say so."""
    _, p2v = _tables(band)
    pool = f"pool {band.spec.name!r}"
    found = []
    bound = int((p2v > 0).sum())
    if bound != band.live:
        found.append(f"{pool}: the live counter says {band.live}, the tables say {bound}")
    pending_count = band.hazards.pending_pages
    if band.span != band.live + band.holes.count + pending_count:
        found.append(
            f"{pool}: a span of {band.span} pages is not {band.live} live, {band.holes.count} "
            f"holes and {pending_count} pending"
        )
    pages = np.sort(band.geometry.page(np.arange(band.span)))
    holes, pending = _hole_list(band), _pending_pages(band)
    lists = {"in the hole list": holes, "pending": pending}
    unlisted = np.setdiff1d(pages[p2v[pages] == -1], np.concatenate((holes, pending)))
    if unlisted.size:
        found.append(f"{pool}: page {unlisted[0]} is free but in no list")
    for name, listed in lists.items():
        listed = np.sort(listed[(listed > 0) & (listed < p2v.size)])
        for page in listed[p2v[listed] != -1][:1].tolist():
            found.append(f"{pool}: page {page} is {name} but bound to id {p2v[page]}")
    for page in np.intersect1d(holes, pending)[:1].tolist():
        found.append(f"{pool}: page {page} is pending and in the hole list")
    return found


def list_violations(band: Band) -> list[str]:
    """No free list holds the sink, a duplicate, a negative id or one that is out of place."""
    pool = f"pool {band.spec.name!r}"
    found = []
    holes = _hole_list(band)
    free_ids = _free_ids(band)
    pending = _pending_pages(band)
    lists = (("hole list", holes), ("free id list", free_ids), ("pending pages", pending))
    for name, entries in lists:
        values, counts = np.unique(entries, return_counts=True)
        if (counts > 1).any():
            found.append(f"{pool}: {values[counts > 1][0]} is twice in the {name}")
        if values.size and values[0] < 1:
            found.append(f"{pool}: {values[0]} is in the {name}")
    depths = band.geometry.depth(holes)
    outside = holes[(depths < 0) | (depths >= band.span)]
    if outside.size:
        found.append(f"{pool}: page {outside[0]} is in the hole list but outside the band")
    return found


def id_violations(band: Band) -> list[str]:
    """Each id is live, free or set aside; a borrowed one with a page is live in its own pool.

    How many of those there are is counted right.
    """
    v2p, _ = _tables(band)
    pool = f"pool {band.spec.name!r}"
    found = []
    if band.table.lender is not None:
        bound = 1 + np.flatnonzero(v2p[1:] != -1)
        lost = bound[host_words(band.table.lender.v2p)[bound] == -1]
        if lost.size:
            found.append(
                f"{pool}: id {lost[0]} has a page here but is not live in {band.spec.ids_from!r}"
            )
        if isinstance(band.ids, BorrowedIds) and band.ids.bound != bound.size:
            found.append(
                f"{pool}: {band.ids.bound} ids are counted as bound here, "
                f"the tables say {bound.size}"
            )
    if not isinstance(band.ids, IdList):
        return found
    free_ids = _free_ids(band)
    unknown = free_ids[free_ids >= band.ids.next_fresh]
    if unknown.size:
        found.append(f"{pool}: id {unknown[0]} is in the free id list but was never handed out")
    used = np.arange(1, band.ids.next_fresh)
    is_free = np.zeros(band.ids.next_fresh, np.bool_)
    is_free[free_ids[(free_ids >= 1) & (free_ids < band.ids.next_fresh)]] = True
    is_bound = v2p[used] != -1
    is_aside = np.isin(used, list(band.ids.set_aside))
    both = used[is_bound & (is_free[1:] | is_aside)]
    neither = used[~is_bound & ~is_free[1:] & ~is_aside]
    if both.size:
        found.append(f"{pool}: id {both[0]} is live but in the free id list")
    if neither.size:
        found.append(f"{pool}: id {neither[0]} is neither live nor in the free id list")
    beyond = np.flatnonzero(v2p[band.ids.next_fresh :] != -1)
    if beyond.size:
        found.append(f"{pool}: id {band.ids.next_fresh + beyond[0]} is live but never handed out")
    return found


def byte_map(bands: Sequence[Band], total_bytes: int) -> list[tuple[str, int, int]]:
    """The buffer as (what, first byte, end byte): sink, bands, gaps and tail, in order."""
    sink_bytes = max(band.spec.page_bytes for band in bands)
    parts = [("sink", 0, sink_bytes)]
    for band in bands:
        if band.span:
            ends = sorted((band.geometry.page(0), band.geometry.page(band.span - 1)))
            page_bytes = band.spec.page_bytes
            name = f"band of {band.spec.name!r}"
            parts.append((name, ends[0] * page_bytes, (ends[1] + 1) * page_bytes))
    top = sorted(bands, key=lambda band: band.geometry.rank)[-1]
    # While the top pool is empty the other one may grow over what the top grid leaves.
    tail = max(top.geometry.num_pages * top.spec.page_bytes, max(end for _, _, end in parts))
    parts.append(("tail", tail, total_bytes))
    parts.sort(key=lambda part: part[1:])
    tiled = []
    end = 0
    for part in parts:
        if part[1] > end:
            tiled.append(("gap", end, part[1]))
        tiled.append(part)
        end = part[2]
    return tiled


def byte_violations(bands: Sequence[Band], total_bytes: int) -> list[str]:
    """Bands overlap neither each other nor the sink: sink + bands + gaps + tail = total."""
    parts = byte_map(bands, total_bytes)
    found = [
        f"bytes {low[1]} to {low[2]} ({low[0]}) overlap {high[1]} to {high[2]} ({high[0]})"
        for low, high in pairwise(parts)
        if high[1] < low[2]
    ]
    held = sum(end - start for _, start, end in parts)
    if held != total_bytes:
        found.append(f"sink, bands, gaps and tail are {held} bytes, the buffer has {total_bytes}")
    return found


def capacity_violations(capacity: Capacity, total_bytes: int) -> list[str]:
    """What can be allocated follows from the live pages of the tables alone.

    Checked while nothing has to stay where it is.
    """
    if not capacity.all_may_pack():
        return []
    chain = capacity.chain
    live = [int((_tables(band)[1] > 0).sum()) for band in chain]
    found = []
    for place, band in enumerate(chain):
        low, high = max(each.spec.page_bytes for each in chain), total_bytes
        for other, count in zip(chain[:place], live[:place], strict=True):
            low = other.geometry.end_above(low, count) if count else low
        for other, count in reversed(list(zip(chain, live, strict=True))[place + 1 :]):
            high = other.geometry.start_below(high, count) if count else high
        room = high // band.spec.page_bytes - -(-low // band.spec.page_bytes) - live[place]
        expected = max(0, min(band.ids.count, room))
        if capacity.available(band) != expected:
            found.append(
                f"pool {band.spec.name!r}: {capacity.available(band)} pages available, "
                f"the tables say {expected}"
            )
    return found


BAND_CHECKS: dict[str, Callable[[Band], list[str]]] = {
    "tables are inverse": table_violations,
    "pages are live, holes or pending": partition_violations,
    "lists are clean": list_violations,
    "ids are live or free": id_violations,
}


def band_violations(band: Band) -> list[str]:
    """What the checks of one band find, each sentence led by the name of its rule."""
    return [f"{name}: {text}" for name, check in BAND_CHECKS.items() for text in check(band)]


def all_violations(
    bands: Sequence[Band], total_bytes: int, capacity: Capacity | None = None
) -> list[str]:
    """What every check finds, each sentence led by the name of its rule."""
    found = [text for band in bands for text in band_violations(band)]
    found += [f"bytes are disjoint: {text}" for text in byte_violations(bands, total_bytes)]
    if capacity is not None:
        found += [f"capacity: {text}" for text in capacity_violations(capacity, total_bytes)]
    return found


def _tables(band: Band) -> tuple[Words, Words]:
    return host_words(band.table.v2p), host_words(band.table.p2v)


def _free_ids(band: Band) -> Words:
    ids = band.ids
    return np.empty(0, np.int64) if ids.buffer is None else host_words(ids.buffer)[: ids.recycled]


def _hole_list(band: Band) -> Words:
    return host_words(band.holes.buffer)[band.holes.head : band.holes.end]


def _pending_pages(band: Band) -> Words:
    page_sets = [pending.page_set for pending in band.hazards.pending]
    return np.concatenate([np.empty(0, np.int64), *(host_words(each.pages) for each in page_sets)])


def host_words(operand: Operand) -> Words:
    """int64 words of the device, on the host."""
    words: Words = operand.cpu().numpy() if isinstance(operand, torch.Tensor) else operand
    return words

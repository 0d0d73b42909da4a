"""arena.repair(): a consistent state from tables that may disagree, with nothing guessed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from kvdefrag.kernels.backend import Backend
from kvdefrag.kernels.launch import Words

from .band import Band
from .faults import FaultRecord
from .free_pages import IdList
from .hazards import Handle, Hazards, PageSet, Pending
from .invariants import all_violations, band_violations, host_words
from .rebuild import pages_of, rebuild, write_words


class AmbiguousPage(NamedTuple):
    """A page whose owner the tables do not agree on, and every id that they name for it."""

    page: int
    virtual_ids: tuple[int, ...]


class BandCounts(NamedTuple):
    """One pool in pages and ids, as the host counts them."""

    live_pages: int
    hole_pages: int
    pending_pages: int
    span_pages: int
    free_ids: int


@dataclass(frozen=True, slots=True)
class PoolRepair:
    """What a repair did to one pool.

    ``violations``: what the checks found wrong before; nothing is touched in a pool without any.
    ``changed_rows``: rows of the two tables that were rewritten. ``ambiguous``: pages whose owner
    is not certain. They and their ids are unbound and set aside: not handed out before the report
    is released.
    """

    violations: tuple[str, ...]
    before: BandCounts
    after: BandCounts
    changed_rows: int
    ambiguous: tuple[AmbiguousPage, ...]


@dataclass(frozen=True, slots=True)
class RepairReport:
    """What a repair did, by pool name."""

    pools: Mapping[str, PoolRepair]
    _set_aside: Handle

    @property
    def changed(self) -> bool:
        """Whether anything differs from before."""
        return any(pool.violations for pool in self.pools.values())

    def release(self) -> None:
        """Give the pages and ids that were set aside back as free ones, once they are dealt with.

        Until then their bytes stay as they are. ``arena.clear()`` gives them back as well. A second
        release is a UsageError.
        """
        self._set_aside.release()


def repair(
    bands: Sequence[Band],
    record: FaultRecord,
    backend: Backend,
    hazards: Hazards,
    total_bytes: int,
) -> RepairReport:
    """Rebuild every band from its tables, clear the fault record, and report.

    Raises CorruptState, and leaves the arena stopped, if the bands still violate an invariant:
    then two pools claim the same bytes.
    """
    found = [tuple(band_violations(band)) for band in bands]
    if any(found):
        # The frontiers may retreat over pages that a forward still writes.
        hazards.wait(())
    aside = Handle("the report", lambda handle: _give_back(bands, backend, handle))
    regions = [_region(band, bool(wrong)) for band, wrong in zip(bands, found, strict=True)]
    pools = {}
    # Lenders go first: an id that is taken from one may still have a page in a borrower.
    for band in sorted(bands, key=lambda each: each.table.lender is not None):
        wrong = found[band.index]
        if not wrong and band.table.lender is not None:
            wrong = tuple(band_violations(band))
        room = _room(band, bands, regions, total_bytes)
        pools[band.spec.name] = _repair_band(band, backend, aside, wrong, room)
    violations = all_violations(bands, total_bytes)
    if violations:
        raise record.stop(violations)
    record.clear()
    return RepairReport({band.spec.name: pools[band.spec.name] for band in bands}, aside)


def _region(band: Band, is_wrong: bool) -> tuple[int, int] | None:
    """The bytes that are certainly the band's, as far as its tables can be trusted."""
    if not is_wrong:
        return band.geometry.edges(band.span) if band.span else None
    v2p = host_words(band.table.virtual_to_physical)
    p2v = host_words(band.table.physical_to_virtual)
    pages = v2p[_sound_ids(band, v2p, p2v)]
    page_bytes = band.spec.page_bytes
    return (
        (int(pages.min()) * page_bytes, int(pages.max() + 1) * page_bytes) if pages.size else None
    )


def _room(
    band: Band,
    bands: Sequence[Band],
    regions: Sequence[tuple[int, int] | None],
    total_bytes: int,
) -> tuple[int, int]:
    """The bytes between what is certainly of the bands below and of those above."""
    chain = sorted(bands, key=lambda each: each.geometry.rank)
    place = chain.index(band)
    low = max([0, *(region[1] for each in chain[:place] if (region := regions[each.index]))])
    above = (region[0] for each in chain[place + 1 :] if (region := regions[each.index]))
    return low, min([total_bytes, *above])


def _repair_band(
    band: Band,
    backend: Backend,
    aside: Handle,
    violations: tuple[str, ...],
    room: tuple[int, int],
) -> PoolRepair:
    before = _counts(band)
    if not violations:
        return PoolRepair((), before, before, 0, ())
    v2p = host_words(band.table.virtual_to_physical).copy()
    p2v = host_words(band.table.physical_to_virtual).copy()
    sound = _sound_ids(band, v2p, p2v)
    ambiguous = _ambiguous_pages(v2p, p2v, sound)
    settled_v2p, settled_p2v = np.full_like(v2p, -1), np.full_like(p2v, -1)
    settled_v2p[sound], settled_p2v[v2p[sound]] = v2p[sound], sound
    settled_v2p[0] = settled_p2v[0] = 0
    changed_rows = np.count_nonzero(settled_v2p != v2p) + np.count_nonzero(settled_p2v != p2v)
    if changed_rows:
        band.table.virtual_to_physical.copy_(torch.from_numpy(settled_v2p))
        band.table.physical_to_virtual.copy_(torch.from_numpy(settled_p2v))
    kept = _kept_pages(band, settled_p2v)
    _set_aside(band, backend, ambiguous, aside, room)
    _set_frontier(band, kept)
    if isinstance(band.ids, IdList):
        last_id = max([int(settled_p2v.max()), *band.ids.set_aside])
        band.ids.next_fresh = max(band.ids.next_fresh, last_id + 1)
    rebuild(band, backend)
    return PoolRepair(violations, before, _counts(band), int(changed_rows), tuple(ambiguous))


def _sound_ids(band: Band, v2p: Words, p2v: Words) -> Words:
    """The ids that own a page of the band's reach, with no other claim on either.

    Borrowed ones are allocated in their own pool.
    """
    ids = 1 + np.flatnonzero(v2p[1:] != -1)
    if band.table.lender is not None:
        ids = ids[host_words(band.table.lender.v2p)[ids] != -1]
    ids = ids[_within_reach(band, v2p[ids])]
    pages = v2p[ids]
    owners = p2v[1:]
    owners = owners[(owners >= 1) & (owners < v2p.size)]
    page_claims = np.bincount(pages, minlength=p2v.size)
    id_claims = np.bincount(owners, minlength=v2p.size)
    alone = (page_claims[pages] == 1) & (id_claims[ids] == 1)
    sound: Words = ids[alone & (p2v[pages] == ids)]
    return sound


def _ambiguous_pages(v2p: Words, p2v: Words, sound: Words) -> list[AmbiguousPage]:
    """Every page that an id without a sound page, or a row of such a page, names."""
    is_sound_id, is_sound_page = np.zeros(v2p.size, np.bool_), np.zeros(p2v.size, np.bool_)
    is_sound_id[sound] = is_sound_page[v2p[sound]] = True
    claims: dict[int, set[int]] = {}
    ids = 1 + np.flatnonzero((v2p[1:] != -1) & ~is_sound_id[1:])
    for virtual_id, page in zip(ids.tolist(), v2p[ids].tolist(), strict=True):
        claims.setdefault(page, set()).add(virtual_id)
    pages = 1 + np.flatnonzero((p2v[1:] != -1) & ~is_sound_page[1:])
    for page, virtual_id in zip(pages.tolist(), p2v[pages].tolist(), strict=True):
        claims.setdefault(page, set()).add(virtual_id)
    return [AmbiguousPage(page, tuple(sorted(claims[page]))) for page in sorted(claims)]


def _set_aside(
    band: Band,
    backend: Backend,
    ambiguous: Sequence[AmbiguousPage],
    aside: Handle,
    room: tuple[int, int],
) -> None:
    """Keep ambiguous pages and own ids out of use until ``aside`` ends, leased pages for longer.

    A page that reaches into what is certainly another pool's is listed, no more.
    """
    if isinstance(band.ids, IdList):
        named = {virtual_id for entry in ambiguous for virtual_id in entry.virtual_ids}
        ids = sorted(virtual_id for virtual_id in named if 1 <= virtual_id <= band.ids.capacity)
        band.ids.set_aside.update(dict.fromkeys(ids, aside))
    pages = np.array([entry.page for entry in ambiguous], dtype=np.int64)
    page_bytes = band.spec.page_bytes
    pages = pages[_within_reach(band, pages)]
    pages = pages[(pages * page_bytes >= room[0]) & ((pages + 1) * page_bytes <= room[1])]
    if pages.size:
        device = band.table.virtual_to_physical.device
        page_set = PageSet(backend.operand(torch.from_numpy(pages).to(device)), pages.size)
        page_set.seen = pages
        # Whoever may still touch a page that was pending or leased may do so until it ends.
        hazards = band.hazards
        fences = {id(fence): fence for each in hazards.pending for fence in each.fences}
        holders = [aside, *hazards.leases]
        hazards.pending.insert(0, Pending(page_set, list(fences.values()), holders))


def _kept_pages(band: Band, p2v: Words) -> Words:
    """The pages that are certainly live, and those that are pending."""
    kept = [np.flatnonzero(p2v > 0)]
    for pending in band.hazards.pending:
        pages = pages_of(pending.page_set)
        kept.append(pages[_within_reach(band, pages)])
    return np.concatenate(kept)


def _set_frontier(band: Band, kept: Words) -> None:
    """The band ends behind its topmost page; ids up to the last used are known."""
    aside = [each.page_set.seen for each in band.hazards.pending if each.page_set.seen is not None]
    band.span = band.geometry.cover(np.concatenate((kept, *aside)))


def _within_reach(band: Band, pages: Words) -> npt.NDArray[np.bool_]:
    """Which of ``pages`` lie on the band's grid, above the sinks."""
    reach: npt.NDArray[np.bool_] = (pages >= band.geometry.first_page) & (
        pages < band.geometry.num_pages
    )
    return reach


def _give_back(bands: Sequence[Band], backend: Backend, aside: Handle) -> None:
    for band in bands:
        band.end(aside)
        ids = band.ids
        if not isinstance(ids, IdList):
            continue
        held = [virtual_id for virtual_id, holder in ids.set_aside.items() if holder is aside]
        words = np.array(held, dtype=np.int64)
        write_words(ids.buffer[ids.recycled :], words, band, backend)
        ids.listed(words.size)
        for virtual_id in held:
            del ids.set_aside[virtual_id]


def _counts(band: Band) -> BandCounts:
    return BandCounts(
        band.live, band.holes.count, band.hazards.pending_pages, band.span, band.ids.count
    )

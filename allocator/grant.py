"""How an allocation is granted: what it takes to make room, then one launch a pool."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from kvdefrag.kernels.take import Take

from .band import Band, no_own_ids
from .geometry import Growth
from .limits import Need
from .shared import Shared

T = TypeVar("T")


def ensure_room(shared: Shared, band: Band, page_count: int, operation: str) -> None:
    """See to it that ``page_count`` pages of one pool can be bound; raises OutOfPages.

    An ``operation`` other than "bind" takes ids of the pool's own: UsageError if it has none.
    """
    shared.record.raise_if_stopped()
    if band.table.lender is not None and operation != "bind":
        raise no_own_ids(band, operation)
    shared.counters.alloc_calls += 1
    beyond = page_count - band.holes.count
    if page_count > band.ids.count or (
        beyond > 0 and band.span + beyond > shared.capacity.span_limit(band)
    ):
        make_room(shared, {band.spec.name: page_count})


def bind_pages(
    shared: Shared, band: Band, page_count: int, low_first: bool = False
) -> torch.Tensor:
    """Hand out ``page_count`` pages that are known to fit; nothing is launched for none."""
    if page_count == 0:
        return torch.empty(0, dtype=torch.int64, device=shared.device)
    backend, table = shared.backend, band.table

    def launch(take: Take, call_tag: int) -> torch.Tensor:
        return backend.bind(
            table.v2p, table.p2v, band.holes.buffer, band.ids.buffer, shared.record.words,
            take, call_tag,
        )  # fmt: skip

    return hand_out(shared, band, page_count, "alloc", launch, low_first)


def bind_ids(shared: Shared, band: Band, virtual_ids: torch.Tensor) -> Callable[[Take, int], None]:
    """The launch that gives pages of ``band`` to ids that it borrows."""
    table, asked = band.table, shared.backend.operand(virtual_ids)
    assert table.lender is not None
    tables = (table.v2p, table.p2v, table.lender.v2p, table.marks)

    def launch(take: Take, call_tag: int) -> None:
        shared.backend.bind_borrowed(
            *tables, asked, band.holes.buffer, shared.record.words, take,
            table.next_serial(), call_tag,
        )  # fmt: skip

    return launch


def hand_out(
    shared: Shared,
    band: Band,
    page_count: int,
    operation: str,
    launch: Callable[[Take, int], T],
    low_first: bool = False,
) -> T:
    """What ``launch(take, call_tag)`` returns, which binds ``page_count`` pages known to fit."""
    take, growth = _choose(shared, band, page_count, low_first)
    found = _launch(shared, band, take, operation, launch)
    band.took(take, growth)
    if shared.debug:
        shared.compactor.check_record()
    return found


def bind_many(shared: Shared, asked: dict[str, int]) -> dict[str, torch.Tensor]:
    """Hand out pages of several pools that are known to fit, the lowest pool first.

    A pool that borrows its ids gives pages to the last of those that its lender hands out.
    """
    found = {}
    waiting = []
    for band in shared.capacity.chain:
        count = asked.get(band.spec.name)
        if count is None:
            continue
        if band.table.lender is None:
            found[band.spec.name] = bind_pages(shared, band, count, low_first=True)
        elif count == 0:
            found[band.spec.name] = torch.empty(0, dtype=torch.int64, device=shared.device)
        else:
            take, growth = _choose(shared, band, count, low_first=True)
            band.took(take, growth)
            waiting.append((band, take))
    for band, take in waiting:
        assert band.spec.ids_from is not None
        lent = found[band.spec.ids_from]
        ids = lent[lent.numel() - take.page_count :]
        _launch(shared, band, take, "bind", bind_ids(shared, band, ids))
        shared.backend.launches += 1
        found[band.spec.name] = ids.clone()
    if waiting and shared.debug:
        shared.compactor.check_record()
    return {name: found[name] for name in asked}


def _choose(shared: Shared, band: Band, page_count: int, low_first: bool) -> tuple[Take, Growth]:
    """Which pages come next.

    Where holes are to be zeroed, the stream waits for forwards that may still write one of them.
    """
    # A band at an end of the buffer grows at its frontier, whatever lies around it.
    gap = shared.capacity.gap(band) if band.geometry.floats else (0, 0)
    take, growth = band.take(page_count, gap, low_first)
    if band.spec.zero_on_alloc and take.head_count + take.newer_count:
        shared.hazards.wait_for_late_writes(band.index, band.hazards.free_calls)
    return take, growth


def _launch(
    shared: Shared, band: Band, take: Take, operation: str, launch: Callable[[Take, int], T]
) -> T:
    """Bind what ``take`` names, and zero it in a second launch where the pool wants that."""
    call_tag = shared.record.next_call_tag(band.index, operation, take.page_count)
    found = launch(take, call_tag)
    if band.spec.zero_on_alloc and take.page_count:
        table = band.table
        shared.backend.zero_pages(
            shared.buffer, band.spec.page_bytes, table.v2p, table.p2v,
            band.holes.buffer, shared.record.words, take,
        )  # fmt: skip
    return found


def make_room(shared: Shared, asked: dict[str, int]) -> None:
    """Do what it takes, and no more, so that ``asked`` can be bound; raises OutOfPages.

    Holes and the gaps come first, then the pools' own pending pages, then their neighbours'.
    """
    capacity = shared.capacity
    if capacity.fits_as_is(asked):
        return
    windows = capacity.windows(asked)
    if windows:
        limit = Need({band.index: (low, high) for band, low, high in windows})
        shared.compactor.flush([band for band, _, _ in windows], limit)
    asking = [band for band in capacity.chain if asked.get(band.spec.name)]
    # Those whose fences are done come first: then perhaps the stream need not wait.
    for band in asking:
        band.reclaim(band.hazards.ready())
    if not capacity.fits_as_is(asked):
        shared.hazards.wait_for(each for band in asking for each in band.hazards.waiting())
        for band in asking:
            band.reclaim(band.hazards.waiting())

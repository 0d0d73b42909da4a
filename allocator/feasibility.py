"""What a buffer can hold, said before anything is made on a device.

The pools are taken as empty. Packed upwards from the sinks, every pool on its own grid, the largest
request fits if and only if it ends inside the buffer; packed from both ends, as the arena does it,
it fits in just the same buffers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .arguments import checked_specs, pool_counts
from .faults import UsageError
from .geometry import BandGeometry, PoolSpec, id_count, lay_grids, require_count

COLUMNS = ("pool", "page bytes", "pages alone", "lost to grid", "lost to tail", "asked", "can have")


@dataclass(frozen=True)
class PoolFeasibility:
    """One pool of an empty buffer.

    ``virtual_pages``: its ids, or those that it ``borrows``. ``largest_allocation``: the pages that
    it can reach alone, ids permitting; a borrower with as many of its lender. ``grid_bytes`` are
    lost between the sinks and the first of them, ``tail_bytes`` between the last page of its grid
    and the buffer's end. ``asked_pages``: what the largest request asks of it; ``available_pages``:
    what it could have while the other pools hold what the request asks of them.
    """

    name: str
    page_bytes: int
    virtual_pages: int
    borrows: bool
    largest_allocation: int
    grid_bytes: int
    tail_bytes: int
    asked_pages: int
    available_pages: int


@dataclass(frozen=True)
class FeasibilityReport:
    """What a buffer of ``total_bytes`` can hold; ``str`` makes a table of it.

    ``pools``: in the order of the buffer. ``sink_bytes``: taken by the sinks of all pools. Of the
    largest request: ``request_bytes``, its pages; ``grid_bytes``, lost between the sinks and its
    first page and between its pools; ``tail_bytes``, left at the buffer's end by the grid of its
    top pool. ``needed_bytes``: the smallest buffer that holds it, and a page of every pool alone,
    unless ids run out.
    """

    total_bytes: int
    sink_bytes: int
    request_bytes: int
    grid_bytes: int
    tail_bytes: int
    needed_bytes: int
    pools: tuple[PoolFeasibility, ...]

    @property
    def spare_bytes(self) -> int:
        """Sinks, request, grids, tail and this make up the total; below 0 where it is too small."""
        taken = self.sink_bytes + self.request_bytes + self.grid_bytes + self.tail_bytes
        return self.total_bytes - taken

    @property
    def fits(self) -> bool:
        """Whether every pool can hold a page, and all together the largest request."""
        return not self.shortfalls

    @property
    def shortfalls(self) -> list[str]:
        """What does not fit, pool by pool."""
        found = []
        for pool in self.pools:
            if pool.asked_pages > pool.available_pages:
                found.append(
                    f"pool {pool.name!r} is asked for {pool.asked_pages} pages of "
                    f"{pool.page_bytes} bytes and can have {pool.available_pages}, "
                    f"alone {pool.largest_allocation}, with {pool.virtual_pages} ids"
                )
            elif pool.largest_allocation == 0:
                found.append(
                    f"pool {pool.name!r} cannot hold a page of {pool.page_bytes} bytes"
                    + " beside one of its lender" * pool.borrows
                )
        return found

    def require(self) -> FeasibilityReport:
        """This report; raises UsageError, with the numbers, if something does not fit."""
        if not self.fits:
            raise UsageError(
                f"total_bytes: {self.total_bytes} cannot serve the largest request, which needs "
                f"{self.needed_bytes}: {'; '.join(self.shortfalls)}"
            )
        return self

    def __str__(self) -> str:
        account = (
            f"{self.total_bytes:,} bytes: {self.sink_bytes:,} sinks, "
            f"{self.request_bytes:,} largest request, {self.grid_bytes:,} lost to grids, "
            f"{self.tail_bytes:,} to the tail, {self.spare_bytes:,} to spare"
        )
        rows = [(pool.name, *(f"{figure:,}" for figure in _figures(pool))) for pool in self.pools]
        verdict = "fits" if self.fits else f"does not fit: {'; '.join(self.shortfalls)}"
        needed = f"{self.needed_bytes:,} bytes needed: {verdict}"
        return "\n".join([account, *_table([COLUMNS, *rows]), needed])


def feasibility(
    total_bytes: int,
    pools: Sequence[PoolSpec],
    largest_request: Mapping[str, int] | None = None,
) -> FeasibilityReport:
    """What a buffer of ``total_bytes`` with these ``pools`` can hold. Makes nothing on a device.

    ``largest_request``: pages by pool name of the worst request, by default none. Raises UsageError
    for a wrong argument, but not for a buffer that is too small: the report's ``require`` does.
    """
    total_bytes = require_count("total_bytes", total_bytes, minimum=1)
    specs = checked_specs(pools)
    wanted = {} if largest_request is None else largest_request
    counts = pool_counts("largest_request", wanted, [spec.name for spec in specs])
    sink_bytes = max(spec.page_bytes for spec in specs)
    chain = sorted(
        zip(specs, lay_grids(specs, total_bytes), strict=True), key=lambda pair: pair[1].rank
    )
    grids = [grid for _, grid in chain]
    asked = [counts.get(spec.name, 0) for spec, _ in chain]
    rooms = _rooms(grids, asked, sink_bytes, total_bytes)
    own_ids = {spec.name: id_count(spec, grid.num_pages) for spec, grid in chain}
    ids = [own_ids[spec.ids_from or spec.name] for spec, _ in chain]
    end = _end_above(sink_bytes, grids, asked)
    request_bytes = sum(count * grid.page_bytes for grid, count in zip(grids, asked, strict=True))
    tops = [grid for grid, count in zip(grids, asked, strict=True) if count]
    return FeasibilityReport(
        total_bytes=total_bytes,
        sink_bytes=sink_bytes,
        request_bytes=request_bytes,
        grid_bytes=end - sink_bytes - request_bytes,
        tail_bytes=total_bytes % tops[-1].page_bytes if tops else 0,
        needed_bytes=max(
            end, *(_end_of_pages(chain, place, 1, sink_bytes) for place in range(len(chain)))
        ),
        pools=tuple(
            PoolFeasibility(
                name=spec.name,
                page_bytes=spec.page_bytes,
                virtual_pages=ids[place],
                borrows=spec.ids_from is not None,
                largest_allocation=_largest(chain, place, ids[place], sink_bytes, total_bytes),
                grid_bytes=grid.end_above(sink_bytes, 0) - sink_bytes,
                tail_bytes=total_bytes % spec.page_bytes,
                asked_pages=asked[place],
                available_pages=min(_ids_for(spec, ids[place], counts), rooms[place]),
            )
            for place, (spec, grid) in enumerate(chain)
        ),
    )


def _largest(
    chain: Sequence[tuple[PoolSpec, BandGeometry]],
    place: int,
    id_limit: int,
    sink_bytes: int,
    total_bytes: int,
) -> int:
    """The most pages of one pool in an empty buffer, with as many of its lender's."""
    spec, grid = chain[place]
    most = min(id_limit, grid.pages_between(sink_bytes, total_bytes))
    if spec.ids_from is None:
        return most
    return bisect_right(
        range(1, most + 1),
        total_bytes,
        key=lambda page_count: _end_of_pages(chain, place, page_count, sink_bytes),
    )


def _end_of_pages(
    chain: Sequence[tuple[PoolSpec, BandGeometry]], place: int, page_count: int, sink_bytes: int
) -> int:
    """Where pages of one pool, and as many of its lender, end when packed upwards."""
    spec = chain[place][0]
    counts = [page_count * (each.name in (spec.name, spec.ids_from)) for each, _ in chain]
    return _end_above(sink_bytes, [grid for _, grid in chain], counts)


def _ids_for(spec: PoolSpec, id_limit: int, asked: Mapping[str, int]) -> int:
    """Ids that a pool could bind: a borrower has those that the request asks of its lender."""
    if spec.ids_from is None or not any(asked.values()):
        return id_limit
    return min(id_limit, asked.get(spec.ids_from, 0))


def _end_above(low_byte: int, grids: Sequence[BandGeometry], asked: Sequence[int]) -> int:
    """Where ``asked`` pages of every grid end when packed upwards from ``low_byte``."""
    for grid, count in zip(grids, asked, strict=True):
        low_byte = grid.end_above(low_byte, count) if count else low_byte
    return low_byte


def _rooms(
    grids: Sequence[BandGeometry], asked: Sequence[int], low_byte: int, high_byte: int
) -> list[int]:
    """The pages that every grid has between the others, which hold their ``asked``."""
    highs = [high_byte]
    for grid, count in zip(reversed(grids[1:]), reversed(asked[1:]), strict=True):
        highs.append(grid.start_below(highs[-1], count) if count else highs[-1])
    return [
        grid.pages_between(_end_above(low_byte, grids[:place], asked[:place]), high)
        for place, (grid, high) in enumerate(zip(grids, reversed(highs), strict=True))
    ]


def _figures(pool: PoolFeasibility) -> tuple[int, ...]:
    return (
        pool.page_bytes,
        pool.largest_allocation,
        pool.grid_bytes,
        pool.tail_bytes,
        pool.asked_pages,
        pool.available_pages,
    )


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """The rows as lines: the first column to the left, the figures to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]

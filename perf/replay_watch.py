"""What a replay looks like from outside: occupancy over the requests, and one flush as a strip."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kvdefrag import Arena, OutOfPages, PoolSpec

from .timed_arena import TimedArena

Report = dict[str, Any]
Strip = list[dict[str, float]]
"""Cells of the buffer, first byte first: the share of a cell's bytes that is live, by pool."""

SAMPLES = 200
CELLS = 256


class Watch:
    """Samples the page counts about `SAMPLES` times, and keeps the flush with the most moves.

    `occupancy` holds `{"request", "pools": {name: {"live_pages", "hole_pages", "span_pages"}}}`.
    `heat` holds the strips `before` and `after` that flush, its `moves`, the `request` (requests
    done by then) and `cell_bytes`; both strips are empty if no flush moved anything. A flush inside
    `alloc_many` is seen with all of that call's grants in `after`.
    """

    def __init__(self, arena: Arena, specs: Sequence[PoolSpec], request_count: int) -> None:
        self.occupancy: list[Report] = []
        self.heat: Report = {
            "before": [],
            "after": [],
            "moves": 0,
            "request": 0,
            "cell_bytes": arena.total_bytes / CELLS,
        }
        self._arena = arena
        self._specs = specs
        self._step = max(1, request_count // SAMPLES)
        self._done = 0
        self._before: Strip = []
        self._moves_before = 0
        self._sample()

    def attach(self, timed: TimedArena) -> None:
        """Look on at the calls of `timed`."""
        if len(self._specs) > 1:
            timed.before_alloc = self._before_alloc
            timed.after_flush = self._after_flush

    def request_done(self) -> None:
        """Count one more request that has finished or been refused."""
        self._done += 1
        if self._done % self._step == 0:
            self._sample()

    def _sample(self) -> None:
        pools = {
            name: {
                "live_pages": pool.live_pages,
                "hole_pages": pool.hole_pages,
                "span_pages": pool.span_pages,
            }
            for name, pool in self._arena.stats().pools.items()
        }
        self.occupancy.append({"request": self._done, "pools": pools})

    def _before_alloc(self, page_counts: Mapping[str, int]) -> None:
        """Draw the strip if this call will flush, unless that flush cannot have the most moves."""
        self._before = []
        if self._pages_in_the_way(page_counts) > self.heat["moves"]:
            self._before = self._strip()
            self._moves_before = self._arena.stats().moves

    def _pages_in_the_way(self, page_counts: Mapping[str, int]) -> int:
        """Pages of bands that an allocation makes withdraw: no fewer than it will move."""
        # Nobody else knows where a band lies that floats.
        capacity = self._arena._shared.capacity
        if capacity.fits_as_is(page_counts):
            return 0
        try:
            windows = capacity.windows(page_counts)
        except OutOfPages:
            return 0
        pages = 0
        for band, low_byte, high_byte in windows:
            first, end = band.geometry.depth_window(low_byte, high_byte)
            pages += min(band.span, max(0, first) + max(0, band.span - end))
        return pages

    def _after_flush(self) -> None:
        moves = self._arena.stats().moves - self._moves_before
        if self._before and moves > self.heat["moves"]:
            self.heat.update(
                before=self._before, after=self._strip(), moves=moves, request=self._done
            )

    def _strip(self) -> Strip:
        edges = np.arange(CELLS + 1) * (self._arena.total_bytes / CELLS)
        shares = {}
        for spec in self._specs:
            table = self._arena[spec.name].physical_to_virtual.cpu().numpy()
            live_bytes = np.zeros(table.size + 1)
            np.cumsum(table > 0, out=live_bytes[1:])
            live_bytes *= spec.page_bytes
            page_edges = np.arange(table.size + 1) * spec.page_bytes
            below = np.interp(edges, page_edges, live_bytes)
            shares[spec.name] = np.diff(below) / self.heat["cell_bytes"]
        return [
            {name: round(float(share[cell]), 4) for name, share in shares.items()}
            for cell in range(CELLS)
        ]

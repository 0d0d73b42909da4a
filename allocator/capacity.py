"""What fits: answered from live counts alone, whatever the holes look like.

The bands lie in a chain over the buffer. Packed from either end, each on its own grid, they leave
the room that one of them can have. Where the holes are, and what is pending, decides how much work
a grant costs, never whether it is given. Only a band that must not move, since moves are blocked or
pages of it are leased, counts with its present span.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .band import Band
from .faults import OutOfPages
from .hazards import Hazards

_NOBODY: Mapping[str, int] = {}


class Capacity:
    """The joint room of the bands of one arena. Every answer is a few integer operations.

    ``chain``: the bands in the order of the buffer, between ``sink_bytes`` and ``total_bytes``.
    ``asked``: pages by pool name that are wanted on top of what is live.
    """

    __slots__ = ("_hazards", "_places", "_sink_bytes", "_total_bytes", "chain")

    def __init__(
        self, chain: Sequence[Band], hazards: Hazards, sink_bytes: int, total_bytes: int
    ) -> None:
        self.chain = chain
        self._places = {band.index: place for place, band in enumerate(chain)}
        self._hazards = hazards
        self._sink_bytes = sink_bytes
        self._total_bytes = total_bytes

    def gap(self, band: Band) -> tuple[int, int]:
        """The bytes between the bands around ``band``, as they lie now."""
        place = self._places[band.index]
        low, high = self._sink_bytes, self._total_bytes
        for other in reversed(self.chain[:place]):
            if other.span:
                low = other.geometry.edges(other.span)[1]
                break
        for other in self.chain[place + 1 :]:
            if other.span:
                high = other.geometry.edges(other.span)[0]
                break
        return low, high

    def span_limit(self, band: Band) -> int:
        """The longest span of ``band``, in pages, while the bands around it stay as they are."""
        return band.geometry.pages_between(*self.gap(band))

    def packs_low(self, band: Band) -> bool:
        """The side to which ``band`` leaves its holes to the roomier neighbour."""
        low, high = self.gap(band)
        bottom, top = band.geometry.edges(band.span)
        return bottom - low <= high - top

    def available(self, band: Band, asked: Mapping[str, int] = _NOBODY) -> int:
        """Pages that ``band`` could be granted, the others packed and granted their ``asked``."""
        place = self._places[band.index]
        low, high = self._sink_bytes, self._total_bytes
        for other in self.chain[:place]:
            low = self._end_above(low, other, asked.get(other.spec.name, 0))
        for other in reversed(self.chain[place + 1 :]):
            high = self._start_below(high, other, asked.get(other.spec.name, 0))
        room = band.geometry.pages_between(low, high)
        return max(0, min(_ids_for(band, asked), room - band.held))

    def all_may_pack(self) -> bool:
        """Whether no page of the arena has to stay where it is."""
        return not any(self._stays(band) for band in self.chain)

    def short_of(self, asked: Mapping[str, int]) -> OutOfPages | None:
        """Why ``asked`` would not be granted together; None if it would."""
        for band in self.chain:
            count = asked.get(band.spec.name, 0)
            if count:
                available = self.available(band, asked)
                if count > available:
                    return OutOfPages(band.spec.name, count, available)
        return None

    def fits_as_is(self, asked: Mapping[str, int]) -> bool:
        """Whether ``asked`` can be granted from holes and from gaps, with nothing else to do."""
        low = self._sink_bytes
        for band in self.chain:
            count = asked.get(band.spec.name, 0)
            if count > _ids_for(band, asked):
                return False
            growth = max(0, count - band.holes.count)
            if band.span == 0 and growth == 0:
                continue
            if growth > band.geometry.pages_between(low, self.gap(band)[1]) - band.span:
                return False
            low = self._stretched_end(low, band, growth)
        return True

    def windows(self, asked: Mapping[str, int]) -> list[tuple[Band, int, int]]:
        """Which bands must withdraw between which bytes to grant ``asked``, in order of moving.

        From the lower end on, every band stays as far up as it is and as those above allow, so that
        only what is in the way moves. Raises OutOfPages if the pools do not fit even when packed.
        """
        short = self.short_of(asked)
        if short is not None:
            raise short
        ceilings = [self._total_bytes]
        for band in reversed(self.chain[1:]):
            ceilings.append(self._start_below(ceilings[-1], band, asked.get(band.spec.name, 0)))
        found: list[tuple[Band, int, int]] = []
        low = self._sink_bytes
        run_start = 0
        for band, ceiling in zip(self.chain, reversed(ceilings), strict=True):
            count = asked.get(band.spec.name, 0)
            if band.span == 0 and count == 0:
                continue
            end = self._end_above(low, band, count)
            if band.span == 0:
                low = end
                continue
            bottom, top = band.geometry.edges(band.span)
            end = max(end, min(top, ceiling))
            if bottom < low:
                # What is pushed upwards goes before those that push it.
                found.insert(run_start, (band, low, end))
            elif top > end:
                run_start = len(found)
                found.append((band, low, end))
            else:
                run_start = len(found)
            low = end
        return found

    def _end_above(self, low: int, band: Band, asked: int) -> int:
        """Where ``band`` and all below it end when packed downwards, from ``low`` on."""
        wanted = band.held + asked
        if band.span and self._stays(band):
            return self._stretched_end(low, band, max(0, wanted - band.span))
        return band.geometry.end_above(low, wanted) if wanted else low

    def _start_below(self, high: int, band: Band, asked: int) -> int:
        """Where ``band`` and all above it start when packed upwards, from ``high`` on."""
        wanted = band.held + asked
        geometry = band.geometry
        if band.span and self._stays(band):
            bottom, top = geometry.edges(band.span)
            growth = max(0, wanted - band.span)
            return bottom - max(0, growth - geometry.pages_between(top, high)) * geometry.page_bytes
        return geometry.start_below(high, wanted) if wanted else high

    def _stays(self, band: Band) -> bool:
        return self._hazards.blocked or band.hazards.pinned

    def _stretched_end(self, low: int, band: Band, growth: int) -> int:
        """Where ``band`` ends if it takes ``growth`` pages, downwards to ``low`` first."""
        geometry = band.geometry
        if band.span == 0:
            return geometry.end_above(low, growth)
        bottom, top = geometry.edges(band.span)
        return top + max(0, growth - geometry.pages_between(low, bottom)) * geometry.page_bytes


def _ids_for(band: Band, asked: Mapping[str, int]) -> int:
    """Ids that ``band`` could bind, those that its lender is ``asked`` for included."""
    lender = band.spec.ids_from
    return band.ids.count if lender is None else band.ids.count + asked.get(lender, 0)

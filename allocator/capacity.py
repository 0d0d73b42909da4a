"""What fits: answered from live counts alone, whatever the holes look like.

Two bands face each other. Packed, a band of ``live`` pages ends at a byte that its geometry knows;
what lies between the two ends is free for either. Where the holes are, and what is pending, decides
how much work a grant costs, never whether it is given. Only a band that must not move, since moves
are blocked or pages of it are leased, counts with its present span.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from .band import Band
from .faults import OutOfPages
from .hazards import Hazards


class Capacity:
    """The joint room of the bands of one arena. Every answer is a few integer operations."""

    __slots__ = ("_bands", "_facing", "_hazards")

    def __init__(self, bands: Sequence[Band], hazards: Hazards) -> None:
        self._bands = bands
        self._hazards = hazards
        self._facing: list[Band | None] = [None] if len(bands) == 1 else [bands[1], bands[0]]

    def span_limit(self, band: Band) -> int:
        """The longest span of ``band``, in pages, while the band it faces stays as it is."""
        other = self._facing[band.index]
        return _limit(band, other, other.span if other else 0)

    def available(self, band: Band, asked: Mapping[str, int] | None = None) -> int:
        """Pages that ``band`` could be granted, the other one packed and granted its ``asked``."""
        other = self._facing[band.index]
        other_span = 0
        if other is not None:
            other_span = self._least_span(other, asked.get(other.spec.name, 0) if asked else 0)
        limit = _limit(band, other, other_span)
        return max(0, min(band.ids.count, limit - _held(band)))

    def may_pack(self, bands: Iterable[Band]) -> bool:
        """Whether no page of ``bands`` has to stay where it is."""
        return not (self._hazards.blocked or any(band.hazards.pinned for band in bands))

    def _least_span(self, band: Band, asked: int) -> int:
        """The span that ``band`` cannot do without once it has ``asked`` more pages."""
        wanted = _held(band) + asked
        return wanted if self.may_pack([band]) else max(band.span, wanted)

    def short_of(self, asked: Mapping[str, int]) -> OutOfPages | None:
        """Why ``asked``, pages by pool name, would not be granted together; None if it would."""
        for band in self._bands:
            count = asked.get(band.spec.name, 0)
            if count:
                available = self.available(band, asked)
                if count > available:
                    return OutOfPages(band.spec.name, count, available)
        return None

    def fits_as_is(self, asked: Mapping[str, int]) -> bool:
        """Whether ``asked`` can be granted from holes and from the gap, with nothing else to do."""
        spans = []
        for band in self._bands:
            count = asked.get(band.spec.name, 0)
            if count > band.ids.count:
                return False
            spans.append(band.span + max(0, count - band.holes.count))
        return all(
            spans[band.index] <= _limit(band, other, spans[other.index] if other else 0)
            for band, other in zip(self._bands, self._facing, strict=True)
        )

    def room_to_make(self, asked: Mapping[str, int]) -> dict[str, int]:
        """Which bands must be packed to which span, in pages by pool name, to grant ``asked``.

        Empty if nothing has to move. With one pool asking it is its neighbour alone: an own move
        never helps. Raises OutOfPages if the pools do not fit even when packed.
        """
        short = self.short_of(asked)
        if short is not None:
            raise short
        packed = [self._least_span(band, asked.get(band.spec.name, 0)) for band in self._bands]
        spans = [max(band.span, pages) for band, pages in zip(self._bands, packed, strict=True)]
        limits: dict[str, int] = {}
        for band in self._bands:
            other = self._facing[band.index]
            limit = _limit(band, other, spans[other.index] if other else 0)
            if spans[band.index] <= limit:
                break
            spans[band.index] = max(limit, packed[band.index])
            if band.span > spans[band.index]:
                limits[band.spec.name] = spans[band.index]
        return limits


def _held(band: Band) -> int:
    """Pages of ``band`` that an allocation cannot have: live ones, and those pending on a lease."""
    return band.live + band.hazards.leased_pending_pages


def _limit(band: Band, other: Band | None, other_span: int) -> int:
    edge = band.geometry.far_byte if other is None else other.geometry.frontier_byte(other_span)
    return band.geometry.span_within(edge)

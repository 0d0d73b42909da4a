"""What a pool is, and where its pages are: the only file that knows directions.

A band grows from one end of the buffer, or floats between others. Everything above this file counts
*depth*: 0 is the page at the band's own end, ``span - 1`` the page at the frontier, whichever way
the band grows. Between bands, places are byte positions, lower ones and higher ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, overload

import numpy as np
import torch

from kvdefrag.kernels.launch import Words

from .faults import UsageError

MAX_PAGES = 2**30
"""Lists hold twice the pages, and their positions travel as 32-bit kernel arguments."""

GROWS = ("up", "float", "down")
"""What ``PoolSpec.grows`` may be, in the order of the buffer."""

Mover = Callable[[torch.Tensor, torch.Tensor], None]
"""``mover(source_pages, target_pages)``: int64 [moves] each, on the arena's device."""


@dataclass(frozen=True)
class PoolSpec:
    """One pool of an arena.

    ``page_bytes``: bytes of a page envelope, ``page_size``: tokens of a page. ``grows``: "up" from
    the start of the buffer, "down" from its end, or "float" between other pools, which it makes
    way for. ``virtual_pages``: how many virtual ids there are (1 to this), by default one for
    every page but the sink. ``mover``: copies pages of an engine that owns its tensors, called as
    ``mover(source_pages, target_pages)`` after the tables have changed; after a fault every pair is
    (0, 0). The two tensors are good until it returns, and it must not call the arena. If it raises,
    its pages no longer hold their bytes: the arena is stopped with CorruptState.
    ``zero_on_alloc``: whole pages read as zero when they are handed out, which takes a second
    launch; not for a pool with a mover, whose bytes the arena cannot reach. ``ids_from``: the name
    of a pool whose ids this one borrows: it hands out none of its own, ``bind`` gives a page here
    to ids that are allocated there and ``release`` takes it back.
    """

    name: str
    page_bytes: int
    page_size: int = 1
    grows: Literal["up", "down", "float"] = "up"
    virtual_pages: int | None = None
    mover: Mover | None = None
    zero_on_alloc: bool = False
    ids_from: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise UsageError(f"name: expected a non-empty string, got {self.name!r}")
        for field in ("page_bytes", "page_size", "virtual_pages"):
            value = getattr(self, field)
            if value is not None or field != "virtual_pages":
                object.__setattr__(self, field, require_count(field, value, minimum=1))
        if self.page_size > MAX_PAGES:
            raise UsageError(f"page_size: at most {MAX_PAGES} tokens, got {self.page_size}")
        if not isinstance(self.grows, str) or self.grows not in GROWS:
            raise UsageError(f"grows: expected 'up', 'down' or 'float', got {self.grows!r}")
        if self.mover is not None and not callable(self.mover):
            raise UsageError(f"mover: expected a callable, got {self.mover!r}")
        if not isinstance(self.zero_on_alloc, bool):
            raise UsageError(f"zero_on_alloc: expected a bool, got {self.zero_on_alloc!r}")
        if self.zero_on_alloc and self.mover is not None:
            raise UsageError(f"zero_on_alloc: pool {self.name!r} has a mover, so no bytes here")
        if self.ids_from is not None and not isinstance(self.ids_from, str):
            raise UsageError(f"ids_from: expected the name of a pool, got {self.ids_from!r}")
        if self.ids_from is not None and self.virtual_pages is not None:
            raise UsageError(
                f"virtual_pages: pool {self.name!r} has the ids of {self.ids_from!r}, "
                f"got {self.virtual_pages}"
            )


def id_count(spec: PoolSpec, num_pages: int) -> int:
    """How many virtual ids a pool of ``num_pages`` has of its own."""
    return max(0, num_pages - 1) if spec.virtual_pages is None else spec.virtual_pages


def require_count(name: str, value: Any, minimum: int = 0) -> int:
    """``value`` as an int; UsageError unless it is an integer of ``minimum`` or more."""
    if type(value) is not int:
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise UsageError(f"{name}: expected an integer, got {value!r}")
        if isinstance(value, torch.Tensor):
            raise UsageError(f"{name}: expected a host integer, got a tensor on {value.device}")
        try:
            value = value.__index__()
        except TypeError:
            raise UsageError(f"{name}: expected an integer, got {value!r}") from None
    if value < minimum:
        raise UsageError(f"{name}: expected {minimum} or more, got {value}")
    return int(value)


class Growth(NamedTuple):
    """Fresh pages of a band: some at its frontier, and ``back_count`` behind its own end.

    ``front_page``, ``back_page``: the first of each, going away from the band.
    """

    front_page: int
    back_page: int
    back_count: int


class BandGeometry:
    """The transform between depths, physical pages and bytes for one band.

    ``page = origin + step * depth``. ``floats``: whether the band's own end may move; ``origin``
    and ``step`` are then those of its present pages, and mean nothing while it has none.
    ``first_page``: the first page above the sinks. ``rank``: bands of a lower one lie lower.
    """

    __slots__ = ("first_page", "floats", "num_pages", "origin", "page_bytes", "rank", "step")

    def __init__(self, spec: PoolSpec, total_bytes: int, sink_bytes: int) -> None:
        self.page_bytes = spec.page_bytes
        self.num_pages = total_bytes // spec.page_bytes
        self.first_page = -(-sink_bytes // spec.page_bytes)
        self.floats = spec.grows == "float"
        self.rank = GROWS.index(spec.grows)
        self.step = -1 if spec.grows == "down" else 1
        self.origin = self.num_pages - 1 if spec.grows == "down" else self.first_page

    @overload
    def page(self, depth: int) -> int: ...
    @overload
    def page(self, depth: Words) -> Words: ...
    def page(self, depth: int | Words) -> int | Words:
        """Physical page id at ``depth``, for one depth or an array."""
        return depth + self.origin if self.step == 1 else self.origin - depth

    @overload
    def depth(self, page: int) -> int: ...
    @overload
    def depth(self, page: Words) -> Words: ...
    def depth(self, page: int | Words) -> int | Words:
        """Depth of physical page ``page``, for one page or an array."""
        return page - self.origin if self.step == 1 else self.origin - page

    def into_depths(self, pages: Words) -> Words:
        """Turn ``pages`` in place into their depths; returns them."""
        if self.step == 1:
            return np.subtract(pages, self.origin, out=pages)
        return np.subtract(self.origin, pages, out=pages)

    def sort_into_depths(self, pages: Words) -> Words:
        """Turn ``pages`` in place into their depths, ascending; returns them."""
        self.into_depths(pages)
        if pages.size > 1:
            pages.sort()
        return pages

    def write_pages(self, depths: Words, out: Words) -> None:
        """Write the physical page ids at ``depths`` into ``out``."""
        if self.step == 1:
            np.add(depths, self.origin, out=out)
        else:
            np.subtract(self.origin, depths, out=out)

    def write_pages_ascending(self, depths: Words, out: Words) -> None:
        """Write the physical page ids at ascending ``depths`` into ``out``, in ascending order."""
        self.write_pages(depths[:: self.step], out)

    def edges(self, span: int) -> tuple[int, int]:
        """The lower and the upper end, in bytes, of a band of ``span`` pages, one at least."""
        low = min(self.origin, self.origin + self.step * (span - 1))
        return low * self.page_bytes, (low + span) * self.page_bytes

    def pages_between(self, low_byte: int, high_byte: int) -> int:
        """Whole pages of this band's grid between two places."""
        return max(0, high_byte // self.page_bytes - -(-low_byte // self.page_bytes))

    def end_above(self, low_byte: int, pages: int) -> int:
        """Where ``pages`` end that start as low as they can above ``low_byte``."""
        return (-(-low_byte // self.page_bytes) + pages) * self.page_bytes

    def start_below(self, high_byte: int, pages: int) -> int:
        """Where ``pages`` start that end as high as they can below ``high_byte``."""
        return (high_byte // self.page_bytes - pages) * self.page_bytes

    def depth_window(self, low_byte: int, high_byte: int) -> tuple[int, int]:
        """The whole pages between two places, as a range of depths."""
        low, high = -(-low_byte // self.page_bytes), high_byte // self.page_bytes - 1
        first, last = sorted((self.depth(low), self.depth(high)))
        return first, last + 1

    def growth(
        self, span: int, page_count: int, low_byte: int, high_byte: int, low_first: bool
    ) -> Growth:
        """Where a floating band of ``span`` pages takes ``page_count`` more, between two places.

        On the roomier side while that has some, or with ``low_first`` on the lower one; the first
        of an empty band lie in the middle, or with ``low_first`` at the lower end. ``settle`` puts
        them into effect. (A band at an end of the buffer takes all at its frontier.)
        """
        low, high = -(-low_byte // self.page_bytes), high_byte // self.page_bytes
        if span == 0:
            first = low if low_first else low + (high - low - page_count) // 2
            return Growth(first, 0, 0)
        bottom = min(self.origin, self.page(span - 1))
        below, above = bottom - low, high - (bottom + span)
        if low_first or below > above:
            lower = min(page_count, below)
        else:
            lower = page_count - min(page_count, above)
        if self.step == 1:
            return Growth(bottom + span, bottom - 1, lower)
        return Growth(bottom - 1, bottom + span, page_count - lower)

    def settle(self, span: int, growth: Growth) -> None:
        """Depth 0 follows the pages of ``growth`` that a floating band has taken."""
        if span == 0:
            self.origin, self.step = growth.front_page, 1
        self.advance(-growth.back_count)

    def advance(self, pages: int) -> None:
        """Move depth 0 by ``pages``, towards the frontier or away from it."""
        self.origin += self.step * pages

    def face(self, span: int, packs_low: bool) -> None:
        """Turn a floating band of ``span`` pages so that packing takes it to that side."""
        if self.floats and span and packs_low != (self.step == 1):
            self.origin = self.page(span - 1)
            self.step = -self.step

    def cover(self, pages: Words) -> int:
        """The span that holds all of ``pages``; the own end of a floating band follows."""
        if not pages.size:
            return 0
        if self.floats:
            self.origin, self.step = int(pages.min()), 1
        return 1 + int(self.depth(pages).max())


def lay_grids(specs: Sequence[PoolSpec], total_bytes: int) -> list[BandGeometry]:
    """The geometry of every pool of a buffer of ``total_bytes``, however few pages it may have.

    All pools are anchored at byte 0; their sinks share the first ``max(page_bytes)`` bytes. Raises
    UsageError if two pools take one end, or if one of them has too many pages.
    """
    ends = [spec.grows for spec in specs if spec.grows != "float"]
    if len(set(ends)) != len(ends):
        grows = ", ".join(f"{spec.name!r} grows {spec.grows}" for spec in specs)
        raise UsageError(f"pools: each end takes one pool, got {grows}")
    sink_bytes = max(spec.page_bytes for spec in specs)
    bands = [BandGeometry(spec, total_bytes, sink_bytes) for spec in specs]
    for spec, band in zip(specs, bands, strict=True):
        if max(band.num_pages, spec.virtual_pages or 0) > MAX_PAGES:
            raise UsageError(
                f"pool {spec.name!r}: at most {MAX_PAGES} pages and ids, got {band.num_pages} "
                f"pages and virtual_pages={spec.virtual_pages}"
            )
    return bands


def place_bands(specs: Sequence[PoolSpec], total_bytes: int) -> list[BandGeometry]:
    """``lay_grids``; raises UsageError also if a pool could not hold a single page."""
    bands = lay_grids(specs, total_bytes)
    for spec, band in zip(specs, bands, strict=True):
        if band.first_page >= band.num_pages:
            sink_bytes = max(each.page_bytes for each in specs)
            raise UsageError(
                f"total_bytes: {total_bytes} is too small for pool {spec.name!r}: a sink of "
                f"{sink_bytes} bytes and one page of {spec.page_bytes} bytes"
            )
    return bands

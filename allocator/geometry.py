"""What a pool is, and where its pages are: the only file that knows directions.

A band grows from one end of the buffer. Everything above this file counts *depth*: 0 is the page
at the band's own end, ``span - 1`` the page at the frontier, whichever way the band grows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

import numpy as np
import torch

from kvdefrag.kernels.launch import Words

from .faults import UsageError

MAX_PAGES = 2**30
"""Lists hold twice the pages, and their positions travel as 32-bit kernel arguments."""

Mover = Callable[[torch.Tensor, torch.Tensor], None]
"""``mover(source_pages, target_pages)``: int64 [moves] each, on the arena's device."""


@dataclass(frozen=True)
class PoolSpec:
    """One pool of an arena.

    ``page_bytes``: bytes of a page envelope, ``page_size``: tokens of a page. ``grows``: "up" from
    the start of the buffer or "down" from its end. ``virtual_pages``: how many virtual ids there
    are (1 to this), by default one for every page but the sink. ``mover``: copies pages of an
    engine that owns its tensors, called as ``mover(source_pages, target_pages)`` after the tables
    have changed; after a fault every pair is (0, 0). The two tensors are good until it returns, and
    it must not call the arena. If it raises, its pages no longer hold their bytes: the arena is
    stopped with CorruptState.
    """

    name: str
    page_bytes: int
    page_size: int = 1
    grows: Literal["up", "down"] = "up"
    virtual_pages: int | None = None
    mover: Mover | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise UsageError(f"name: expected a non-empty string, got {self.name!r}")
        for field in ("page_bytes", "page_size", "virtual_pages"):
            value = getattr(self, field)
            if value is not None or field != "virtual_pages":
                object.__setattr__(self, field, require_count(field, value, minimum=1))
        if self.page_size > MAX_PAGES:
            raise UsageError(f"page_size: at most {MAX_PAGES} tokens, got {self.page_size}")
        if not isinstance(self.grows, str) or self.grows not in ("up", "down"):
            raise UsageError(f"grows: expected 'up' or 'down', got {self.grows!r}")
        if self.mover is not None and not callable(self.mover):
            raise UsageError(f"mover: expected a callable, got {self.mover!r}")


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


class BandGeometry:
    """The transform between depths, physical pages and bytes for one band.

    ``page = origin + step * depth``. Frontiers between bands are byte positions.
    """

    __slots__ = ("_near_byte", "far_byte", "num_pages", "origin", "page_bytes", "step")

    def __init__(self, spec: PoolSpec, total_bytes: int, sink_bytes: int) -> None:
        self.page_bytes = spec.page_bytes
        self.num_pages = total_bytes // spec.page_bytes
        if spec.grows == "up":
            self.step = 1
            self.origin = -(-sink_bytes // spec.page_bytes)
            self._near_byte, self.far_byte = sink_bytes, total_bytes
        else:
            self.step = -1
            self.origin = self.num_pages - 1
            self._near_byte, self.far_byte = total_bytes, sink_bytes

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

    def frontier_byte(self, span_pages: int) -> int:
        """Where a band of ``span_pages`` ends; an empty band takes no room at all."""
        if span_pages == 0:
            return self._near_byte
        first_beyond = self.origin + self.step * span_pages
        return (first_beyond if self.step == 1 else first_beyond + 1) * self.page_bytes

    def span_within(self, limit_byte: int) -> int:
        """The longest span in pages that stays on this band's side of ``limit_byte``."""
        if self.step == 1:
            return max(0, limit_byte // self.page_bytes - self.origin)
        return max(0, self.num_pages - -(-limit_byte // self.page_bytes))


def place_bands(specs: Sequence[PoolSpec], total_bytes: int) -> list[BandGeometry]:
    """The geometry of every pool of a buffer of ``total_bytes``; all pools anchored at byte 0.

    The sinks of all pools share the first ``max(page_bytes)`` bytes. Raises UsageError if the pools
    do not take different ends, or if one of them could not hold a single page.
    """
    if len({spec.grows for spec in specs}) != len(specs):
        grows = ", ".join(f"{spec.name!r} grows {spec.grows}" for spec in specs)
        raise UsageError(f"pools: two pools take the two ends, got {grows}")
    sink_bytes = max(spec.page_bytes for spec in specs)
    bands = [BandGeometry(spec, total_bytes, sink_bytes) for spec in specs]
    for spec, band in zip(specs, bands, strict=True):
        if max(band.num_pages, spec.virtual_pages or 0) > MAX_PAGES:
            raise UsageError(
                f"pool {spec.name!r}: at most {MAX_PAGES} pages and ids, got {band.num_pages} "
                f"pages and virtual_pages={spec.virtual_pages}"
            )
        if band.span_within(band.far_byte) < 1:
            raise UsageError(
                f"total_bytes: {total_bytes} is too small for pool {spec.name!r}: a sink of "
                f"{sink_bytes} bytes and one page of {spec.page_bytes} bytes"
            )
    return bands

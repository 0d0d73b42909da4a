"""What a replay asks of an allocator: the part of `Arena` that the baselines have as well."""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import torch


class PoolFace(Protocol):
    """One pool, as `MultiEndedAllocator` has it."""

    @property
    def pages(self) -> torch.Tensor | None:
        """The pool's view of the buffer, uint8 `[num_pages, page_bytes]`."""

    def try_alloc(self, page_count: int, /) -> torch.Tensor | None:
        """int64 virtual ids `[page_count]`, or None where they do not fit."""

    def free(self, virtual_ids: torch.Tensor, /) -> None:
        """Give back the pages of `virtual_ids`."""

    def translate(self, virtual_ids: torch.Tensor, /) -> torch.Tensor:
        """Physical page ids, int64 of the same shape."""


@runtime_checkable
class SharingPoolFace(PoolFace, Protocol):
    """A pool that lends ids or borrows them; the baselines have none."""

    @property
    def name(self) -> str:
        """The pool's name."""

    def free(self, virtual_ids: torch.Tensor, /, cascade: Mapping[str, int] | None = None) -> None:
        """Give back pages; `cascade`: how many of them are released in pools that borrow."""

    def bind(self, virtual_ids: torch.Tensor, /) -> None:
        """Give pages of this pool to ids of another."""

    def release(self, virtual_ids: torch.Tensor, /, page_count: int | None = None) -> None:
        """Take these back; with `page_count`, so many, and the list may have gaps."""


class PoolCounts(Protocol):
    """Page counts of one pool, defined in `PoolStats`."""

    @property
    def live_pages(self) -> int:
        """Bound now."""

    @property
    def hole_pages(self) -> int:
        """Free inside the band now."""

    @property
    def span_pages(self) -> int:
        """Pages of the band now."""

    @property
    def peak_hole_pages(self) -> int:
        """The most holes at any time."""


class StatsFace(Protocol):
    """The counters that a comparison shows, defined in `ArenaStats`."""

    @property
    def flush_calls(self) -> int:
        """Flushes that read something back."""

    @property
    def flush_host_ns(self) -> int:
        """Host nanoseconds in flushes."""

    @property
    def moves(self) -> int:
        """Pages moved."""

    @property
    def bytes_moved(self) -> int:
        """Their bytes."""

    @property
    def device_to_host_copies(self) -> int:
        """Times that the host waited for words from the device."""

    @property
    def pools(self) -> Mapping[str, PoolCounts]:
        """Counts by pool name."""


class ArenaFace(Protocol):
    """The pools of one buffer."""

    @property
    def device(self) -> torch.device:
        """Where buffer and tables live."""

    @property
    def layout_version(self) -> int:
        """Changes whenever pages have moved."""

    def __getitem__(self, name: str, /) -> PoolFace:
        """The pool called `name`."""

    def fits(self, page_counts: Mapping[str, int], /) -> bool:
        """Whether `alloc_many` would grant these pages by pool name now."""

    def alloc_many(self, page_counts: Mapping[str, int], /) -> dict[str, torch.Tensor]:
        """Virtual ids by pool name, all or nothing."""

    def prewarm(self) -> Any:
        """Compile what will be used."""

    def check(self, deep: bool = False) -> None:
        """Raise `AllocatorError` where tables or counts disagree."""

    def stats(self) -> StatsFace:
        """What happened so far."""

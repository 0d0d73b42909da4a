"""What happened so far: counters kept by the allocator, and the frozen snapshot it hands out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """The running counts of one arena; ``ArenaStats`` defines each."""

    alloc_calls: int = 0
    free_calls: int = 0
    flush_calls: int = 0
    flushes_with_moves: int = 0
    flush_host_ns: int = 0
    moves: int = 0
    bytes_moved: int = 0
    absorbed: int = 0
    layout_version: int = 0


@dataclass(frozen=True, slots=True)
class PoolStats:
    """One pool, in pages.

    ``live_pages``: bound now. ``hole_pages``: free pages inside the band now. ``pending_pages``:
    pages of the band that are neither, until forwards or leases end. ``span_pages``: pages of the
    band now, all three. ``peak_hole_pages``: the most holes at any time since the last ``clear``.
    ``free_ids``: virtual ids that could be handed out now, or bound where they are borrowed.
    ``leases``: leases not released yet.
    """

    live_pages: int
    hole_pages: int
    pending_pages: int
    span_pages: int
    peak_hole_pages: int
    free_ids: int
    leases: int


@dataclass(frozen=True, slots=True)
class ArenaStats:
    """One arena since it was made. Nothing is read from the device for it.

    ``alloc_calls``: calls of ``alloc``, ``try_alloc``, ``alloc_many``, ``alloc_tokens``,
    ``extend``, ``decode`` and ``bind``, failed ones included.
    ``free_calls``: calls of ``free``, ``free_tokens``, ``free_token_run``, ``release`` and
    ``release_tokens``.
    ``flush_calls``: flushes that took a snapshot, those inside an allocation included.
    ``flushes_with_moves``: flushes that moved at least one page.
    ``flush_host_ns``: host time spent in flushes, in nanoseconds.
    ``moves``: pages moved. ``bytes_moved``: their page bytes, each byte counted once.
    ``absorbed``: holes that became free space without a move.
    ``launches``: Triton launches and torch operators, or calls of host twins.
    ``device_to_host_copies``, ``host_to_device_copies``: transfers, or staging steps on the host.
    ``layout_version``: changes whenever pages have moved, and on nothing else.
    ``forwards_in_flight``: forwards whose end has not been noticed yet.
    ``fence_waits``: times that the stream was made to wait for a fence.
    ``move_blocks``: blocks of moves that hold now, by reason.
    ``pools``: one ``PoolStats`` for every pool, by name.
    """

    alloc_calls: int
    free_calls: int
    flush_calls: int
    flushes_with_moves: int
    flush_host_ns: int
    moves: int
    bytes_moved: int
    absorbed: int
    layout_version: int
    forwards_in_flight: int
    fence_waits: int
    move_blocks: Mapping[str, int]
    launches: int
    device_to_host_copies: int
    host_to_device_copies: int
    pools: dict[str, PoolStats]

"""How far a flush may go, and what it says of itself."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from kvdefrag.kernels.launch import Words

from .band import Band
from .faults import UsageError
from .geometry import require_count
from .plan import MovePlan, moves_to_reach, plan_floating, plan_moves, plan_withdrawal


class FlushResult(NamedTuple):
    """What one flush did to one pool.

    ``moves``: pages moved, which is the number of changed v2p rows. ``bytes_moved``: their page
    bytes. ``absorbed``: holes given back without a move. ``pending``: pages pending now.
    ``stopped_by``: why it ended early: "budget", "forward" (a forward in flight will write a page),
    "lease", "blocked", or "" if it did not.
    """

    moves: int = 0
    bytes_moved: int = 0
    absorbed: int = 0
    pending: int = 0
    stopped_by: str = ""


class Sight(NamedTuple):
    """What a plan has to go by, in ascending depths; the arguments of ``plan_moves``.

    ``kept``: pages that are neither live nor to be used. ``stop_depth``: no live page there or
    below moves. ``sources_stay``: vacated pages stay in the band for now.
    """

    holes: Words
    kept: Words
    stop_depth: int
    sources_stay: bool


class MoveLimit(Protocol):
    """How far a flush may go.

    ``urgent``: the stream may wait for forwards in flight. ``shifts``: also a band without a hole
    may have to move.
    """

    urgent: bool
    shifts: bool

    def plan(self, band: Band, sight: Sight) -> MovePlan:
        """The moves for ``band``, charged at once to what is left."""


class Packing:
    """Pack fully."""

    __slots__ = ("urgent",)
    shifts = False

    def __init__(self, urgent: bool) -> None:
        self.urgent = urgent

    def plan(self, band: Band, sight: Sight) -> MovePlan:
        """No limit."""
        return plan_within(band, sight, None)


class Budget:
    """A limit of moves and of bytes for one idle flush, shared by the pools that it visits."""

    __slots__ = ("_bytes", "_moves")
    urgent = False
    shifts = False

    def __init__(self, max_moves: int | None, max_bytes: int | None) -> None:
        self._moves = max_moves
        self._bytes = max_bytes

    def plan(self, band: Band, sight: Sight) -> MovePlan:
        """At most the moves that are left."""
        limits = [] if self._moves is None else [self._moves]
        if self._bytes is not None:
            limits.append(self._bytes // band.spec.page_bytes)
        plan = plan_within(band, sight, min(limits))
        if self._moves is not None:
            self._moves -= plan.sources.size
        if self._bytes is not None:
            self._bytes -= plan.sources.size * band.spec.page_bytes
        return plan


class Need:
    """Withdraw only as far as others need: between two places, in bytes by pool index.

    Nothing in such a band has to stay where it is.
    """

    __slots__ = ("_windows",)
    urgent = True
    shifts = True

    def __init__(self, windows: dict[int, tuple[int, int]]) -> None:
        self._windows = windows

    def plan(self, band: Band, sight: Sight) -> MovePlan:
        """The moves that clear what lies outside."""
        first, end = band.geometry.depth_window(*self._windows[band.index])
        if band.geometry.floats:
            return plan_withdrawal(sight.holes, band.span, first, end)
        return plan_within(band, sight, moves_to_reach(sight.holes, band.span, end))


def plan_within(band: Band, sight: Sight, move_limit: int | None) -> MovePlan:
    """The walk with at most ``move_limit`` moves."""
    plan = plan_floating if band.geometry.floats else plan_moves
    return plan(sight.holes, band.span, move_limit, *sight[1:])


_IDLE, _URGENT = Packing(urgent=False), Packing(urgent=True)


def flush_limit(urgent: bool, max_moves: int | None, max_bytes: int | None) -> MoveLimit:
    """The limit of a flush from its arguments; UsageError for a contradiction."""
    if max_moves is None and max_bytes is None:
        return _URGENT if urgent else _IDLE
    if urgent:
        raise UsageError(
            f"urgent: packs fully, so no limit goes with it, "
            f"got max_moves={max_moves}, max_bytes={max_bytes}"
        )
    return Budget(
        None if max_moves is None else require_count("max_moves", max_moves),
        None if max_bytes is None else require_count("max_bytes", max_bytes),
    )

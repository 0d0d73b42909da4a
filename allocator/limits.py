"""How far a flush may go, and what it says of itself."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from kvdefrag.kernels.launch import Words

from .band import Band
from .faults import UsageError
from .geometry import require_count
from .plan import moves_to_reach


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


class MoveLimit(Protocol):
    """How many moves a flush may make; ``urgent``: the stream may wait for forwards in flight."""

    urgent: bool

    def moves(self, band: Band, holes: Words) -> int | None:
        """Moves left for ``band`` with these sorted hole depths; None: no limit."""

    def charge(self, band: Band, moves: int) -> None:
        """Take ``moves`` pages of ``band`` off what is left."""


class Unlimited:
    """Pack fully."""

    __slots__ = ("urgent",)

    def __init__(self, urgent: bool) -> None:
        self.urgent = urgent

    def moves(self, band: Band, holes: Words) -> None:
        """No limit."""

    def charge(self, band: Band, moves: int) -> None:
        """Nothing to take off."""


class Budget:
    """A limit of moves and of bytes for one idle flush, shared by the pools that it visits."""

    __slots__ = ("_bytes", "_moves")
    urgent = False

    def __init__(self, max_moves: int | None, max_bytes: int | None) -> None:
        self._moves = max_moves
        self._bytes = max_bytes

    def moves(self, band: Band, holes: Words) -> int:
        """The moves left for ``band``."""
        limits = [] if self._moves is None else [self._moves]
        if self._bytes is not None:
            limits.append(self._bytes // band.spec.page_bytes)
        return min(limits)

    def charge(self, band: Band, moves: int) -> None:
        """Take ``moves`` pages of ``band`` off what is left."""
        if self._moves is not None:
            self._moves -= moves
        if self._bytes is not None:
            self._bytes -= moves * band.spec.page_bytes


class Need:
    """Pack only until the bands are no longer than ``span_limits``, in pages by pool name."""

    __slots__ = ("_span_limits",)
    urgent = True

    def __init__(self, span_limits: dict[str, int]) -> None:
        self._span_limits = span_limits

    def moves(self, band: Band, holes: Words) -> int:
        """Moves that free what is asked of ``band``."""
        return moves_to_reach(holes, band.span, self._span_limits[band.spec.name])

    def charge(self, band: Band, moves: int) -> None:
        """Nothing to take off: every band has its own limit."""


_IDLE, _URGENT = Unlimited(urgent=False), Unlimited(urgent=True)


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

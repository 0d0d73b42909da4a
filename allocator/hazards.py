"""What keeps pages where they are: forwards in flight, pending pages, leases and move blocks.

Everything here is bookkeeping on the host. Physical page ids are fixed on the device when a forward
or a lease begins, and travel to the host with the next snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from kvdefrag.kernels.backend import Operand
from kvdefrag.kernels.launch import Words

from .faults import UsageError


class Fence(Protocol):
    """The end of a forward on its stream. ``torch.cuda.Event`` is one."""

    def query(self) -> bool:
        """Whether the forward is done; never waits."""

    def wait(self) -> None:
        """Make the current stream wait for the forward; the host goes on."""


class PageSet:
    """Physical pages on the device that the host has yet to see.

    ``words``: int64 on the device, with ``count`` entries and perhaps room for more: page ids, or
    token ids of ``page_size`` tokens a page. ``seen``: the distinct page ids, once a snapshot has
    brought them; None before.
    """

    __slots__ = ("count", "page_size", "seen", "words")

    def __init__(self, words: Operand, count: int, page_size: int = 1) -> None:
        self.words = words
        self.count = count
        self.page_size = page_size
        self.seen: Words | None = None

    @property
    def pages(self) -> Operand:
        """The entries: int64 [count] on the device."""
        return self.words[: self.count]

    def listed(self, page_count: int) -> None:
        """Count entries that a launch has written behind the others."""
        self.count += page_count
        self.seen = None


class Forward(NamedTuple):
    """A forward in flight: its fence, and the pages that it will write by pool index.

    ``free_calls``: how many frees each of these pools had seen when it was launched.
    """

    fence: Fence
    written: dict[int, list[PageSet]]
    free_calls: dict[int, int]


class Pending(NamedTuple):
    """Pages that are neither live nor free before all ``fences`` and ``leases`` have ended.

    Pages vacated by a move wait for fences, pages freed in a pool with leases wait for leases.
    """

    page_set: PageSet
    fences: list[Fence]
    leases: list[Handle]


class Handle:
    """Something that holds until ``release``, which is also the end of a ``with`` block."""

    __slots__ = ("_on_release", "_what")

    def __init__(self, what: str, on_release: Callable[[Any], None]) -> None:
        self._what = what
        self._on_release: Callable[[Any], None] | None = on_release

    def release(self) -> None:
        """End it; a second time is a UsageError."""
        if self._on_release is None:
            raise UsageError(f"release: {self._what} was released before")
        on_release, self._on_release = self._on_release, None
        on_release(self)

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, *error: object) -> None:
        if self._on_release is not None:
            self.release()


class MoveBlock(Handle):
    """No page of the arena moves until it is released; ``reason`` says for whom."""

    __slots__ = ("reason",)

    def __init__(self, reason: str, on_release: Callable[[Any], None]) -> None:
        super().__init__(f"the block for {reason!r}", on_release)
        self.reason = reason


class Lease(Handle):
    """Pages that an outside reader or writer holds: neither moved nor reused until released."""

    __slots__ = ("page_set",)

    def __init__(self, pool: str, pages: PageSet, on_release: Callable[[Any], None]) -> None:
        super().__init__(f"the lease of {pages.count} pages of pool {pool!r}", on_release)
        self.page_set = pages


class BandHazards:
    """The pending pages and the leases of one band; ``free_calls``: frees that it has seen."""

    __slots__ = ("free_calls", "leases", "pending")

    def __init__(self) -> None:
        self.free_calls = 0
        self.leases: list[Lease] = []
        self.pending: list[Pending] = []

    @property
    def pending_pages(self) -> int:
        """Pages that are pending now."""
        return sum(pending.page_set.count for pending in self.pending)

    @property
    def leased_pending_pages(self) -> int:
        """Pending pages that no wait can bring back."""
        return sum(pending.page_set.count for pending in self.pending if pending.leases)

    @property
    def pinned(self) -> bool:
        """Whether some page must stay where it is, however long anyone waits."""
        return bool(self.leases) or any(pending.leases for pending in self.pending)

    def waiting(self) -> list[Pending]:
        """The pending pages that wait for fences alone."""
        return [pending for pending in self.pending if not pending.leases]

    def ready(self) -> list[Pending]:
        """The pending pages whose fences are all done."""
        for pending in self.pending:
            pending.fences[:] = [fence for fence in pending.fences if not fence.query()]
        return [pending for pending in self.waiting() if not pending.fences]

    def drop(self, ended: Iterable[Pending]) -> None:
        """Forget pending pages that have become holes."""
        gone = {id(pending) for pending in ended}
        self.pending = [pending for pending in self.pending if id(pending) not in gone]


class Hazards:
    """The forwards in flight and the move blocks of one arena.

    ``fence_waits`` counts how often the stream was made to wait.
    """

    __slots__ = ("_blocks", "_forwards", "fence_waits")

    def __init__(self) -> None:
        self._forwards: list[Forward] = []
        self._blocks: list[MoveBlock] = []
        self.fence_waits = 0

    @property
    def forwards_in_flight(self) -> int:
        """Forwards whose end has not been noticed yet."""
        return len(self._forwards)

    @property
    def blocked(self) -> bool:
        """Whether pages must not move."""
        return bool(self._blocks)

    def block_counts(self) -> Mapping[str, int]:
        """How many blocks each reason holds now."""
        reasons = [block.reason for block in self._blocks]
        return {reason: reasons.count(reason) for reason in reasons}

    def launched(self, forward: Forward) -> None:
        """Note a forward; those that have ended are forgotten."""
        self.outstanding()
        self._forwards.append(forward)

    def outstanding(self) -> Sequence[Forward]:
        """The forwards in flight, each distinct fence asked once."""
        if self._forwards:
            done = {id(fence) for fence in distinct_fences(self._forwards) if fence.query()}
            self._forwards = [each for each in self._forwards if id(each.fence) not in done]
        return self._forwards

    def wait(self, pending: Iterable[Pending]) -> None:
        """``wait_for``, and for every forward in flight: none is in the way from here on."""
        self.wait_for(pending, distinct_fences(self._forwards))
        # What comes next on the stream comes after them.
        self._forwards = []

    def wait_for(self, pending: Iterable[Pending], fences: Iterable[Fence] = ()) -> None:
        """Make the stream wait once for each of ``fences`` and of those of ``pending``.

        The pending pages have no fences left then.
        """
        waiting = list(pending)
        distinct = {id(fence): fence for fence in fences}
        for each in waiting:
            distinct.update((id(fence), fence) for fence in each.fences)
        for fence in distinct.values():
            if not fence.query():
                fence.wait()
                self.fence_waits += 1
        # Not before all of them have been waited for: a fence that raises is not forgotten.
        for each in waiting:
            each.fences.clear()

    def wait_for_late_writes(self, pool_index: int, free_calls: int) -> None:
        """Make the stream wait for forwards that may write a page which was freed meanwhile.

        ``free_calls``: the frees that the pool has seen by now.
        """
        late = [
            forward
            for forward in self.outstanding()
            if forward.free_calls.get(pool_index, free_calls) != free_calls
        ]
        self.wait_for((), distinct_fences(late))
        ended = {id(forward) for forward in late}
        self._forwards = [each for each in self._forwards if id(each) not in ended]

    def block(self, reason: str) -> MoveBlock:
        """Keep all pages where they are until the handle is released."""
        if not isinstance(reason, str) or not reason:
            raise UsageError(f"reason: expected a non-empty string, got {reason!r}")
        block = MoveBlock(reason, self._blocks.remove)
        self._blocks.append(block)
        return block


def distinct_fences(forwards: Sequence[Forward]) -> list[Fence]:
    """The fences of ``forwards``, each once."""
    if not forwards:
        return []
    return list({id(forward.fence): forward.fence for forward in forwards}.values())


def require_fence(fence: Fence) -> Fence:
    """``fence``; UsageError unless it can be queried and waited for."""
    for name in ("query", "wait"):
        if isinstance(fence, type) or not callable(getattr(fence, name, None)):
            raise UsageError(f"fence: expected query() and wait(), got {fence!r}")
    return fence

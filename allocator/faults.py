"""The errors, by whose fault they are, and the device fault record behind two of them.

AllocatorError
+-- UsageError(ValueError)   the caller's: a wrong argument, a double free, an unknown id
+-- OutOfPages               nobody's: the pools are full; has ``asked`` and ``available``
+-- CorruptState             the tables disagree; has ``violations``
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from kvdefrag.kernels.backend import Backend, Operand
from kvdefrag.kernels.launch import Words
from kvdefrag.kernels.record import (
    CORRUPT,
    COUNT_DIFFERS,
    FAULT_TEXT,
    MIRROR,
    NAMES_TOKEN,
    RECORD_WORDS,
    SLOT_WORDS,
    USAGE,
)

POOL_BITS = 4
"""Low bits of a call tag that hold the pool's index; the rest is the call number."""

JOURNAL_CALLS = 64
"""Calls that the journal remembers."""

NAMED_CALLS = 8
"""Calls of the journal that the message of an error names."""

CALL_NUMBERS = 2 ** (31 - POOL_BITS)
"""Call numbers wrap here: a tag of over 31 bits would be another type, and another compile."""


class AllocatorError(Exception):
    """Anything that the allocator refuses."""


class UsageError(AllocatorError, ValueError):
    """The caller passed something wrong; the message names the argument and the value."""


class OutOfPages(AllocatorError):
    """The live pages leave no room. ``asked`` and ``available``: pages of the pool named."""

    def __init__(self, pool: str, asked: int, available: int) -> None:
        super().__init__(f"pool {pool!r}: asked for {asked} pages, {available} available")
        self.pool = pool
        self.asked = asked
        self.available = available


class CorruptState(AllocatorError):
    """Tables, lists or counts disagree.

    ``violations`` lists every finding; ``fault`` is what a kernel recorded, if it was one;
    ``journal`` holds the arena's last calls, oldest first.
    """

    def __init__(
        self, violations: list[str], fault: Fault | None = None, journal: Sequence[Call] = ()
    ) -> None:
        text = "; ".join(violations)
        if journal:
            text += f" (last calls: {', '.join(map(str, journal[-NAMED_CALLS:]))})"
        super().__init__(text)
        self.violations = violations
        self.fault = fault
        self.journal = tuple(journal)


class Call(NamedTuple):
    """One launch that may record a fault: its number, pool, operation and pages."""

    number: int
    pool: str
    operation: str
    page_count: int

    def __str__(self) -> str:
        return f"{self.number}: {self.operation} {self.page_count} of {self.pool!r}"


@dataclass(frozen=True, slots=True)
class Fault:
    """One slot of the device record, read back. Ids that do not apply are -1.

    ``virtual_id``: a token id with some codes; ``index``: pages found where a count differs.
    """

    code: int
    call_number: int
    pool: str
    index: int
    source_page: int
    target_page: int
    virtual_id: int

    def __str__(self) -> str:
        text = f"pool {self.pool!r}: {FAULT_TEXT[self.code]}: "
        if self.code == COUNT_DIFFERS.value:
            return f"{text}{self.index} pages (call {self.call_number})"
        ids = (("source page", self.source_page), ("target page", self.target_page))
        named = "".join(f", {name} {page}" for name, page in ids if page != -1)
        kind = "token id" if self.code in NAMES_TOKEN else "virtual id"
        return (
            f"{text}{kind} {self.virtual_id}{named} (call {self.call_number}, index {self.index})"
        )


class FaultRecord:
    """The device record of one arena, what the host has seen of it, and the journal.

    ``words``: int64 [16] on the device (layout: ``kernels.record``). ``mirror``: int64 [16] on the
    host, in which a fault shows up without a copy: pinned memory that the kernels write as well,
    or on the CPU the record itself. ``stopped`` holds what was found (violations, fault, journal)
    once a corrupt state was seen; from then on the guarded calls raise.
    """

    __slots__ = ("_blank", "_journal", "_pool_names", "call_number", "mirror", "stopped", "words")

    def __init__(self, backend: Backend, device: torch.device, pool_names: list[str]) -> None:
        blank = torch.zeros(RECORD_WORDS, dtype=torch.int64, device="cpu")
        if device.type == "cuda":
            pinned = blank.clone().pin_memory()
            blank[MIRROR.value] = pinned.data_ptr()
            words = blank.to(device)
        else:
            words = pinned = blank.clone()
        self._blank: Operand = backend.operand(blank.to(device))
        self.words: Operand = backend.operand(words)
        self.mirror: Words = pinned.numpy()
        self.call_number = 0
        self.stopped: tuple[list[str], Fault | None, Sequence[Call]] | None = None
        self._journal: deque[tuple[int, int, str, int]] = deque(maxlen=JOURNAL_CALLS)
        self._pool_names = pool_names

    def next_call_tag(self, pool_index: int, operation: str, page_count: int) -> int:
        """The tag under which the next launch of this pool records its faults."""
        number: int = (self.call_number + 1) % CALL_NUMBERS
        self.call_number = number
        self._journal.append((number, pool_index, operation, page_count))
        return (number << POOL_BITS) | pool_index

    def journal(self) -> list[Call]:
        """The last calls, oldest first."""
        return [
            Call(number, self._pool_names[index], operation, page_count)
            for number, index, operation, page_count in self._journal
        ]

    def raise_if_stopped(self) -> None:
        """Raise CorruptState if one was seen before, or shows in the mirror now."""
        if self.stopped is None:
            if not self.mirror.item(CORRUPT.value):
                return
            # Its other words may still be on their way: the record itself is read back.
            fault = self.corrupt_fault(torch.as_tensor(self.words).cpu().numpy())
            if fault is None:  # from before the last ``clear``
                self.mirror[:] = 0
                return
            raise self.stop([str(fault)], fault)
        raise CorruptState(*self.stopped)

    def stop(self, violations: list[str], fault: Fault | None = None) -> CorruptState:
        """Refuse every guarded call from now on; returns the error to raise."""
        self.stopped = (violations, fault, self.journal())
        return CorruptState(*self.stopped)

    def holds_fault(self, words: Words) -> bool:
        """Whether ``words``, int64 [16] read back from the device, hold any fault."""
        return bool(words.item(USAGE.value) or words.item(CORRUPT.value))

    def corrupt_fault(self, words: Words) -> Fault | None:
        """The corrupt state in ``words``, int64 [16] read back from the device, if any."""
        return self._fault(words, CORRUPT.value)

    def usage_fault(self, words: Words) -> Fault | None:
        """The refused id in ``words``, int64 [16] read back from the device, if any."""
        return self._fault(words, USAGE.value)

    def clear(self) -> None:
        """Forget every fault, on the device and on the host."""
        self.words[:] = self._blank
        self.mirror[:] = 0
        self.stopped = None

    def _fault(self, words: Words, slot: int) -> Fault | None:
        taken, code, call_tag, *ids = (int(word) for word in words[slot : slot + SLOT_WORDS - 1])
        if not taken:
            return None
        pool = self._pool_names[call_tag & ((1 << POOL_BITS) - 1)]
        return Fault(code, call_tag >> POOL_BITS, pool, *ids)

"""The running requests as arrays, so that a decode step costs the same for one or for all."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .content_keys import PAGE_KEY_STEP, Integers, Keys, private_keys
from .prefix_cache import Node
from .trace import BLOCK_TOKENS, Request

IDLE = 1 << 60
"""Tokens left in a slot without a request: it never ends and never needs a page."""


@dataclass(eq=False)
class Job:
    """A request on its way through the engine; `generated` tokens survive a preemption."""

    request: Request
    generated: int = 0
    admitted: bool = False
    waited: bool = False

    @property
    def private_tokens(self) -> int:
        """Tokens that no other request can share: the partial last block and the answer."""
        return self.request.input_tokens % BLOCK_TOKENS + self.generated


class Running(NamedTuple):
    """What a slot holds: the job, the end of its locked prefix, and its private pages now.

    Those from `window_first` on have a page in the window as well, if there is one.
    """

    job: Job
    end: Node
    serial: int
    page_count: int
    window_first: int = 0


class Leaving(NamedTuple):
    """Private pages that the window has passed, one a slot: position, key, and whether it has.

    Where it has not, the position is that of a page without one in the window, or -1.
    """

    positions: Integers
    keys: Keys
    leaves: NDArray[np.bool_]


class RunningBatch:
    """Slots of running requests, advanced together.

    Arrays over the slots: tokens that the private pages still take (negative: one page is
    missing), tokens still to generate, private pages held and the key of the next one, the first of
    them in a window of `window_tokens`, and serials, which grow with each admission.
    """

    def __init__(self, slots: int, page_size: int, window_tokens: int = 0) -> None:
        self.count = 0
        self._page_size = page_size
        self._window_tokens = window_tokens
        self._free_slots = list(range(slots - 1, -1, -1))
        self._holders: list[tuple[Job, Node] | None] = [None] * slots
        self._slack = np.full(slots, IDLE, dtype=np.int64)
        self._remaining = np.full(slots, IDLE, dtype=np.int64)
        self._page_counts = np.zeros(slots, dtype=np.int64)
        self._next_keys = np.zeros(slots, dtype=np.uint64)
        self._window_firsts = np.zeros(slots, dtype=np.int64)
        self._serials = np.zeros(slots, dtype=np.int64)

    @property
    def full(self) -> bool:
        """Whether every slot is taken."""
        return not self._free_slots

    def add(self, job: Job, end: Node, serial: int, page_count: int, window_first: int = 0) -> int:
        """Take a slot for `job`, which holds `page_count` private pages; returns the slot.

        Those from `window_first` on are in the window.
        """
        slot = self._free_slots.pop()
        self._holders[slot] = (job, end)
        self._slack[slot] = page_count * self._page_size - job.private_tokens
        self._remaining[slot] = job.request.output_tokens - job.generated
        self._page_counts[slot] = page_count
        self._next_keys[slot] = private_keys(serial, page_count, 1)[0]
        self._window_firsts[slot] = window_first
        self._serials[slot] = serial
        self.count += 1
        return slot

    def remove(self, slot: int) -> Running:
        """Empty a slot, and note in its job how many tokens were generated."""
        holder = self._holders[slot]
        assert holder is not None
        job, end = holder
        job.generated = job.request.output_tokens - int(self._remaining[slot])
        held = Running(
            job,
            end,
            int(self._serials[slot]),
            int(self._page_counts[slot]),
            int(self._window_firsts[slot]),
        )
        self._holders[slot] = None
        self._slack[slot] = self._remaining[slot] = IDLE
        self._serials[slot] = 0
        self._free_slots.append(slot)
        self.count -= 1
        return held

    def advance(self) -> int:
        """Generate tokens until a request needs a page or ends; returns the decode steps."""
        to_page = int(np.minimum.reduce(self._slack)) + 1
        to_end = int(np.minimum.reduce(self._remaining))
        steps = min(to_page, to_end)
        self._slack -= steps
        self._remaining -= steps
        return steps

    def short_of_a_page(self) -> Integers:
        """Return the slots whose newest token has no page yet."""
        return (self._slack < 0).nonzero()[0]

    def ended(self) -> Sequence[int]:
        """Return the slots whose requests have nothing left to generate."""
        if np.minimum.reduce(self._remaining) > 0:
            return ()
        slots: list[int] = (self._remaining <= 0).nonzero()[0].tolist()
        return slots

    def growth(self, slots: Integers) -> tuple[Integers, Keys]:
        """Return position and key of the next private page of each of `slots`."""
        return self._page_counts[slots], self._next_keys[slots]

    def leave_window(self, slots: Integers) -> Leaving:
        """Move the window of each of `slots`, which are short of a page, to its newest token.

        Since the last time it has passed one page of a slot at most.
        """
        page_counts, firsts = self._page_counts[slots], self._window_firsts[slots]
        tokens = page_counts * self._page_size + 1
        new_firsts = np.maximum(tokens - self._window_tokens, 0) // self._page_size
        self._window_firsts[slots] = new_firsts
        positions = new_firsts - 1
        back = (page_counts - positions).astype(np.uint64)
        return Leaving(
            positions, self._next_keys[slots] - back * PAGE_KEY_STEP, new_firsts > firsts
        )

    def add_pages(self, slots: Integers) -> None:
        """Note that each of `slots` got one more page."""
        self._slack[slots] += self._page_size
        self._page_counts[slots] += 1
        self._next_keys[slots] += PAGE_KEY_STEP

    def youngest(self) -> int:
        """Return the slot that was admitted last."""
        return int(self._serials.argmax())

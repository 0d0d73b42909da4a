"""Greedy decoding of many prompts, several at a time, over the pages of a pool under pressure.

Requests share whole pages of equal prompt starts. Where the pool is short of pages, finished
requests' pages are evicted, then the youngest running request is preempted: it loses its pages and
is computed again from its first token. A second pool of the arena grows and shrinks at random.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import torch

from kvdefrag import PoolSpec

from .attention_model import MOST_TOKENS, TOKEN_BYTES, AttentionModel, token_rows
from .jobs import PAGE_SIZE, Job, PrefixCache
from .pressed_arena import PressedArena

KV = PoolSpec("kv", PAGE_SIZE * TOKEN_BYTES, PAGE_SIZE, grows="up")


class Forward(NamedTuple):
    """What a forward was launched with: see `AttentionModel.forward`."""

    places: torch.Tensor
    tokens: torch.Tensor
    positions: torch.Tensor


class Decoder:
    """Decodes `jobs` in order, `slots` at a time, over the pages of `memory`."""

    def __init__(self, memory: PressedArena, jobs: Sequence[Job], slots: int) -> None:
        self.cache = PrefixCache()
        self.steps = self.computed = self.evictions = self.preemptions = 0
        self._memory = memory
        self._model = AttentionModel()
        self._rows = token_rows(memory.pool)
        self._queue = deque(jobs)
        self._slots: list[Job | None] = [None] * slots

    def run(self) -> None:
        """Decode until every answer is complete; afterwards only the cache holds pages."""
        while self._queue or self._running():
            while self._queue and None in self._slots and self._admit(self._queue[0]):
                self._slots[self._slots.index(None)] = self._queue.popleft()
            self._grow()
            assert self._running(), "the arena is too small for one request"
            self._finish(self._launch())
            self._give_way()
            self._memory.pack(self.steps)
            self.steps += 1
            if self.steps % 64 == 0:
                self._memory.arena.check(deep=True)
        self._memory.arena.check(deep=True)
        assert self._memory.pool.live_pages == len(self.cache)

    def _launch(self) -> Forward:
        """A forward starts: its addresses are translated, once for all layers.

        Every running request computes its next token, in the last of its pages that is in use. An
        empty slot computes token 0 in the sink.
        """
        slots = len(self._slots)
        token_ids = torch.zeros(slots, MOST_TOKENS, dtype=torch.int64)
        new = torch.zeros(2, slots, dtype=torch.int64)
        for slot, job in enumerate(self._slots):
            if job is not None:
                length = job.computed + 1
                pages = torch.tensor(job.pages)[:, None] * PAGE_SIZE + torch.arange(PAGE_SIZE)
                token_ids[slot, :length] = pages.flatten()[:length]
                new[:, slot] = torch.tensor([job.tokens[job.computed], job.computed])
        places = self._memory.pool.translate_tokens(token_ids.flatten())
        return Forward(places.view(slots, -1), tokens=new[0], positions=new[1])

    def _finish(self, forward: Forward) -> None:
        """The forward reads and writes the KV, as nothing else does, and ends."""
        logprobs = self._model.forward(self._rows, *forward)
        self.computed += len(self._running())
        for slot, job in enumerate(self._slots):
            if job is not None:
                job.take(logprobs[slot])
                if job.done:
                    self._release(job, keep=True)

    def _running(self) -> list[Job]:
        return [job for job in self._slots if job is not None]

    def _admit(self, job: Job) -> bool:
        """Give a request pages for half of its known tokens; False, with none held, if it cannot.

        The other half it takes as it goes, so that running requests get into each other's way.
        """
        if not job.preemptions:
            self.cache.lock(job)
        page_count = max(1, len(job.tokens) // (2 * PAGE_SIZE) - len(job.pages))
        while self._memory.pool.available() < page_count:
            if not self._evict():
                self._release(job, keep=False)
                return False
        self.cache.hit_tokens += job.shared * PAGE_SIZE
        job.pages += self._memory.alloc(page_count)
        return True

    def _grow(self) -> None:
        """A page for every request whose next token needs one, the oldest first."""
        for job in sorted(self._running(), key=lambda job: job.number):
            while job in self._slots and job.computed == len(job.pages) * PAGE_SIZE:
                if self._memory.pool.available():
                    job.pages += self._memory.alloc(1)
                elif not self._evict():
                    self._preempt(self._youngest())

    def _give_way(self) -> None:
        """Let the neighbour have what it asks for; one request goes on."""
        self._memory.neighbour.choose()
        while self._memory.neighbour.short:
            if not self._evict():
                if len(self._running()) < 2:
                    break
                self._preempt(self._youngest())
        self._memory.resize_neighbour()

    def _youngest(self) -> Job:
        return max(self._running(), key=lambda job: job.number)

    def _evict(self) -> bool:
        virtual_id = self.cache.evict()
        if virtual_id is None:
            return False
        self._memory.free([virtual_id])
        self.evictions += 1
        return True

    def _preempt(self, job: Job) -> None:
        self._release(job, keep=False)
        self._queue.appendleft(job)
        job.preemptions += 1
        self.preemptions += 1

    def _release(self, job: Job, keep: bool) -> None:
        """Take a request out; `keep` what it has computed, for others."""
        self.cache.unlock(job)
        gone = self.cache.insert(job) if keep else job.pages[job.shared :]
        if gone:
            self._memory.free(gone)
        job.pages, job.shared, job.computed = [], 0, 0
        if job in self._slots:
            self._slots[self._slots.index(job)] = None

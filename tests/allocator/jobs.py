"""Requests to decode, and the cache of what finished ones have computed."""

import math
from collections import Counter, OrderedDict
from dataclasses import dataclass, field

import numpy as np
import torch

from .attention_model import VOCABULARY

PAGE_SIZE = 4


@dataclass(eq=False)
class Job:
    """A request: `wanted` tokens after `prompt`. What it answered survives a preemption.

    `pages` are virtual ids, the first `shared` of them the cache's; `computed` tokens are in them.
    `logprobs` has a row for every answered token.
    """

    number: int
    prompt: list[int]
    wanted: int
    answer: list[int] = field(default_factory=list)
    logprobs: list[torch.Tensor] = field(default_factory=list)
    pages: list[int] = field(default_factory=list)
    shared: int = 0
    computed: int = 0
    preemptions: int = 0
    replay_difference: float = 0.0

    @property
    def tokens(self) -> list[int]:
        """What is known of the sequence."""
        return self.prompt + self.answer

    @property
    def done(self) -> bool:
        """Whether the answer is complete."""
        return len(self.answer) == self.wanted

    def key(self, page: int) -> tuple[int, ...]:
        """What the keys and values of the page at this index depend on."""
        return tuple(self.tokens[: (page + 1) * PAGE_SIZE])

    def take(self, logprobs: torch.Tensor) -> None:
        """The logprobs after the next token. What a replay computes again must be the same."""
        self.computed += 1
        place = self.computed - len(self.prompt)
        if place < 0:
            return
        if place == len(self.answer):
            self.answer.append(int(logprobs.argmax()))
            self.logprobs.append(logprobs)
        else:
            difference = largest_difference(logprobs, self.logprobs[place])
            self.replay_difference = max(self.replay_difference, difference)


def largest_difference(left: torch.Tensor, right: torch.Tensor) -> float:
    """The largest absolute difference; infinite where only NaN could tell."""
    return float((left - right).abs().nan_to_num(nan=math.inf).max())


def make_jobs(count: int, seed: int, most_prompt: int, most_wanted: int) -> list[Job]:
    """Prompts of 8 tokens or more, most of which begin like others; answers of 8 or more."""
    rng = np.random.default_rng(seed)
    starts = [rng.integers(VOCABULARY, size=size).tolist() for size in (5, 8, 14, 17, 24)]
    jobs = []
    for number in range(count):
        start = starts[rng.integers(len(starts))]
        length = int(rng.integers(8, most_prompt + 1))
        tail = rng.integers(VOCABULARY, size=length).tolist()
        prompt = (start + tail)[:length] if rng.random() < 0.8 else tail
        jobs.append(Job(number, prompt, int(rng.integers(8, most_wanted + 1))))
    return jobs


class PrefixCache:
    """Full pages of finished requests, by all tokens up to the page's end.

    The least recently used go first, of one request its last page before those that it builds on.
    """

    def __init__(self) -> None:
        self._pages: OrderedDict[tuple[int, ...], int] = OrderedDict()
        self._users: Counter[tuple[int, ...]] = Counter()
        self.hit_tokens = 0

    def __len__(self) -> int:
        return len(self._pages)

    def lock(self, job: Job) -> None:
        """Give `job` the pages of its prompt that are here, but not that of its last token."""
        for page in range((len(job.prompt) - 1) // PAGE_SIZE):
            key = job.key(page)
            if key not in self._pages:
                break
            self._users[key] += 1
            job.pages.append(self._pages[key])
        job.shared = len(job.pages)
        job.computed = job.shared * PAGE_SIZE

    def unlock(self, job: Job) -> None:
        """Take the shared pages back."""
        for page in reversed(range(job.shared)):
            self._users[job.key(page)] -= 1
            self._pages.move_to_end(job.key(page))

    def insert(self, job: Job) -> list[int]:
        """Keep the full pages that `job` has computed; returns those that are here already."""
        full = job.computed // PAGE_SIZE
        doubles = job.pages[full:]
        for page in reversed(range(job.shared, full)):
            if job.key(page) in self._pages:
                doubles.append(job.pages[page])
            else:
                self._pages[job.key(page)] = job.pages[page]
        return doubles

    def evict(self) -> int | None:
        """Forget the oldest page that nobody uses."""
        for key in self._pages:
            if not self._users[key]:
                return self._pages.pop(key)
        return None

"""A seeded generator of traffic in the shape of the Mooncake conversation trace.

Sessions start at random times and run for a few turns. All share one system block; a turn's prompt
is the whole conversation so far and a new message; lengths are heavy-tailed. The constants were
fitted to the published hour of traffic: 12,031 requests, prompts of 6,909 (median) and 12,035
(mean) tokens, answers of 350 and 343, and 37 % of all blocks seen before.
"""

import heapq
import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from .trace import BLOCK_TOKENS, Request

DEFAULT_REQUESTS = 12_000

REQUEST_GAP_MS = 300.0
TURNS_MEAN = 1.63
THINK_MS_MEAN = 120_000.0
OUTPUT_TOKEN_MS = 30.0
SYSTEM_TOKENS = BLOCK_TOKENS
CONTEXT_TOKENS_MAX = 126_000
OUTPUT_TOKENS_MAX = 2_000


class _LogNormal(NamedTuple):
    median: float
    sigma: float

    def draw(self, random: np.random.Generator) -> int:
        return 1 + int(random.lognormal(np.log(self.median), self.sigma))


OPENING_TOKENS = _LogNormal(median=4_600, sigma=1.25)
MESSAGE_TOKENS = _LogNormal(median=900, sigma=1.4)
ANSWER_TOKENS = _LogNormal(median=260, sigma=0.8)


class _Turn(NamedTuple):
    arrival_ms: int
    session: int
    input_tokens: int
    output_tokens: int


def generate_trace(request_count: int, seed: int) -> list[Request]:
    """Make `request_count` requests, sorted by arrival.

    The same seed gives the same requests, and a shorter trace is the head of a longer one. Hash
    ids are numbered from 0 in the order in which they first appear; 0 is the system block.
    """
    arrivals = _arrivals(np.random.default_rng(seed))
    fresh_hash = itertools.count(1)
    session_hashes: dict[int, list[int]] = {}
    requests = []
    for turn in itertools.islice(arrivals, request_count):
        hashes = session_hashes.setdefault(turn.session, [0])
        full_blocks, tail_tokens = divmod(turn.input_tokens, BLOCK_TOKENS)
        hashes.extend(itertools.islice(fresh_hash, full_blocks - len(hashes)))
        tail = [next(fresh_hash)] if tail_tokens else []
        requests.append(
            Request(turn.arrival_ms, turn.input_tokens, turn.output_tokens, (*hashes, *tail))
        )
    return requests


def _arrivals(random: np.random.Generator) -> Iterator[_Turn]:
    """Yield the turns of all sessions in order of arrival, without end."""
    pending: list[_Turn] = []
    start_ms = 0.0
    for session in itertools.count():
        while pending and pending[0].arrival_ms <= start_ms:
            yield heapq.heappop(pending)
        for turn in _draw_session(session, start_ms, random):
            heapq.heappush(pending, turn)
        start_ms += random.exponential(REQUEST_GAP_MS * TURNS_MEAN)


def _draw_session(session: int, start_ms: float, random: np.random.Generator) -> list[_Turn]:
    turns = []
    arrival_ms = start_ms
    input_tokens = SYSTEM_TOKENS + OPENING_TOKENS.draw(random)
    for _ in range(random.geometric(1 / TURNS_MEAN)):
        input_tokens = min(input_tokens, CONTEXT_TOKENS_MAX)
        output_tokens = min(ANSWER_TOKENS.draw(random), OUTPUT_TOKENS_MAX)
        turns.append(_Turn(int(arrival_ms), session, input_tokens, output_tokens))
        arrival_ms += output_tokens * OUTPUT_TOKEN_MS + random.exponential(THINK_MS_MEAN)
        input_tokens += output_tokens + MESSAGE_TOKENS.draw(random)
    return turns

"""A small grouped-query transformer whose keys and values live in a pool's pages alone.

Every operation treats a sequence of the batch as a problem of its own and of one shape: one new
token, at most `MOST_TOKENS` old ones. So a token's logprobs depend, to the last bit, on the tokens
before it and on nothing else: not on the slot, the other sequences or what padding points at.
"""

from typing import NamedTuple

import torch

from kvdefrag import MultiEndedAllocator

LAYERS = 4
QUERY_HEADS = 4
KV_HEADS = 2
HEAD_DIM = 16
WIDTH = QUERY_HEADS * HEAD_DIM
GROUP = QUERY_HEADS // KV_HEADS
VOCABULARY = 256
MOST_TOKENS = 64
"""Prompt and answer of one sequence."""

TOKEN_BYTES = LAYERS * 2 * KV_HEADS * HEAD_DIM * torch.float32.itemsize
"""Keys and values of one token in all layers."""

SHARPNESS = 4.0
"""Scales the queries, so that attention picks tokens instead of averaging over them."""


class Layer(NamedTuple):
    """Weights, float32 [inputs, outputs] each."""

    into_heads: torch.Tensor
    out_of_heads: torch.Tensor
    widen: torch.Tensor
    narrow: torch.Tensor


def token_rows(pool: MultiEndedAllocator) -> torch.Tensor:
    """The pool's bytes by physical token id: float32 [tokens, layers, 2, kv heads, head dim]."""
    assert pool.pages is not None
    assert pool.page_bytes == pool.page_size * TOKEN_BYTES
    return pool.pages.view(torch.float32).view(-1, LAYERS, 2, KV_HEADS, HEAD_DIM)


class AttentionModel:
    """Random weights from `seed`, float32 on the CPU."""

    def __init__(self, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)

        def weights(inputs: int, outputs: int) -> torch.Tensor:
            return torch.randn(inputs, outputs, generator=generator) / inputs**0.5

        self._embedding = torch.randn(VOCABULARY, WIDTH, generator=generator)
        self._layers = [
            Layer(
                weights(WIDTH, WIDTH + 2 * KV_HEADS * HEAD_DIM),
                weights(WIDTH, WIDTH),
                weights(WIDTH, 2 * WIDTH),
                weights(2 * WIDTH, WIDTH),
            )
            for _ in range(LAYERS)
        ]
        self._head = weights(WIDTH, VOCABULARY)
        frequencies = 1000.0 ** (-torch.arange(HEAD_DIM // 2) / (HEAD_DIM // 2))
        angles = torch.arange(MOST_TOKENS)[:, None] * frequencies
        self._cos, self._sin = angles.cos(), angles.sin()

    def forward(
        self,
        rows: torch.Tensor,
        places: torch.Tensor,
        tokens: torch.Tensor,
        positions: torch.Tensor,
    ) -> torch.Tensor:
        """Logprobs, float32 [sequences, vocabulary], of what follows one new token a sequence.

        `rows`: see `token_rows`; read, and written at the new tokens. `places`: physical token ids
        of all tokens so far, the new one included, int64 [sequences, MOST_TOKENS]; those behind it
        are padding. `tokens` and `positions`: the new token and where it stands, int64 [sequences].
        """
        here = places.gather(1, positions[:, None])[:, 0]
        visible = torch.arange(MOST_TOKENS) <= positions[:, None]
        hidden = self._embedding[tokens][:, None]
        for index, layer in enumerate(self._layers):
            heads = _times(_normal(hidden), layer.into_heads).view(len(tokens), -1, HEAD_DIM)
            queries, keys, values = heads.split((QUERY_HEADS, KV_HEADS, KV_HEADS), dim=1)
            rows[here, index] = torch.stack((self._rotated(keys, positions), values), dim=1)
            queries = self._rotated(queries, positions) * SHARPNESS
            seen = _attend(queries, rows[places, index], visible)
            hidden = hidden + _times(seen, layer.out_of_heads)
            wide = _times(_normal(hidden), layer.widen).relu()
            hidden = hidden + _times(wide, layer.narrow)
        return _times(_normal(hidden), self._head)[:, 0].log_softmax(dim=-1)

    def _rotated(self, heads: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Rotary positions: pairs of dimensions turned by their token's angle."""
        cos, sin = self._cos[positions][:, None], self._sin[positions][:, None]
        left, right = heads.chunk(2, dim=-1)
        return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)


def _attend(queries: torch.Tensor, cached: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
    """[sequences, 1, WIDTH] from queries [sequences, heads, dim] and what is cached for them.

    Padding may hold anything, NaN included: its keys and values are replaced, its weight is zero.
    """
    sequences = len(queries)
    cached = torch.where(visible[:, :, None, None, None], cached, 0.0)
    by_head = cached.permute(2, 0, 3, 1, 4).reshape(2, -1, MOST_TOKENS, HEAD_DIM)
    keys, values = by_head[0], by_head[1]
    grouped = queries.reshape(-1, GROUP, HEAD_DIM)
    scores = torch.bmm(grouped, keys.transpose(1, 2)) / HEAD_DIM**0.5
    scores = scores.view(sequences, QUERY_HEADS, MOST_TOKENS)
    scores = scores.masked_fill(~visible[:, None], float("-inf"))
    shares = scores.softmax(dim=-1).view(-1, GROUP, MOST_TOKENS)
    return torch.bmm(shares, values).view(sequences, 1, WIDTH)


def _times(states: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """A product of its own for every sequence: one for all would depend on the row's place."""
    return torch.bmm(states, weights.expand(len(states), *weights.shape))


def _normal(states: torch.Tensor) -> torch.Tensor:
    return states / (states.square().mean(dim=-1, keepdim=True) + 1e-6).sqrt()

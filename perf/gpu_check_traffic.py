"""Random calls of an engine that never reads the device: it keeps what it got as tensors."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from kvdefrag import Arena, OutOfPages

from .gpu_check_sizes import MIB

IDS_MOST = 300

SEQUENCES = 24
"""In a batch that decodes, all of one length."""


class Tokens(NamedTuple):
    """Token ids of ``page_count`` whole or partial pages."""

    ids: torch.Tensor
    page_count: int


class Decoding(NamedTuple):
    """Sequences of ``length`` tokens; ``heads``: the first tokens of their pages, page by page."""

    last: torch.Tensor
    length: int
    heads: list[torch.Tensor]


class Traffic:
    """A seeded engine on any arena. ``live``: ids without a page elsewhere, or that have one here.

    ``called``: how often each kind of call was made.
    """

    def __init__(self, arena: Arena, seed: int) -> None:
        self.arena = arena
        self.draw = random.Random(seed)
        self.live: dict[str, list[torch.Tensor]] = {name: [] for name in arena.pools}
        self.tokens: dict[str, list[Tokens]] = {name: [] for name in arena.pools}
        self.decoding: dict[str, Decoding] = {}
        self.lenders = {name: pool._band.spec.ids_from for name, pool in arena.pools.items()}
        self.outs = {
            dtype: torch.zeros(IDS_MOST, dtype=dtype, device=arena.device)
            for dtype in (torch.int64, torch.int32)
        }
        self.gaps = torch.full((3,), -1, dtype=torch.int64, device=arena.device)
        self.called: Counter[str] = Counter()

    def kinds(self) -> set[str]:
        """The names of all calls that can occur."""
        kinds = OF_OWN_IDS + (OF_BORROWED_IDS if any(self.lenders.values()) else ())
        return {call.__name__ for call in kinds}

    def step(self) -> None:
        """One random call."""
        name = self.draw.choice(list(self.live))
        call = self.draw.choice(OF_BORROWED_IDS if self.lenders[name] else OF_OWN_IDS)
        try:
            if call(self, name):
                self.called[call.__name__] += 1
        except OutOfPages:
            self._make_room()

    def form(self, ids: torch.Tensor) -> torch.Tensor:
        """``ids`` as int32 now and then."""
        return ids.to(torch.int32) if self.draw.random() < 0.3 else ids

    def pick(self, name: str) -> torch.Tensor | None:
        """Some ids of the pool, no longer kept; None if there are none."""
        kept = self.live[name]
        return kept.pop(self.draw.randrange(len(kept))) if kept else None

    def _make_room(self) -> None:
        for name, lender in self.lenders.items():
            if lender is None:
                _free(self, name)
                _free_tokens(self, name)
            else:
                _cascade(self, name)


def uploaded(values: list[int], device: torch.device) -> torch.Tensor:
    """``values`` as int64, without a wait."""
    pinned = torch.tensor(values, dtype=torch.int64, pin_memory=device.type == "cuda")
    return pinned.to(device, non_blocking=True)


def _alloc(traffic: Traffic, name: str) -> bool:
    draw = traffic.draw
    count = draw.choice((1, 2, 15, 16, 17, 128, draw.randint(1, IDS_MOST)))
    if draw.random() < 0.2:
        for other, ids in traffic.arena.alloc_many({name: count}).items():
            traffic.live[other].append(ids)
    else:
        traffic.live[name].append(traffic.arena[name].alloc(count))
    return True


def _free(traffic: Traffic, name: str) -> bool:
    ids = traffic.pick(name)
    if ids is None:
        return False
    if traffic.draw.random() < 0.6 and ids.numel() > 1:
        traffic.live[name].append(ids[1::2])
        ids = ids[::2]
    traffic.arena[name].free(traffic.form(ids))
    return True


def _flush(traffic: Traffic, name: str) -> bool:
    limits: dict[str, Any] = traffic.draw.choice(
        ({"urgent": True}, {}, {"max_moves": 7}, {"max_bytes": MIB // 2})
    )
    traffic.draw.choice((traffic.arena[name], traffic.arena)).flush(**limits)
    return True


def _look(traffic: Traffic, name: str) -> bool:
    if not traffic.live[name]:
        return False
    pool, ids = traffic.arena[name], traffic.form(traffic.draw.choice(traffic.live[name]))
    out = traffic.outs[traffic.draw.choice(list(traffic.outs))]
    pool.translate(ids)
    pool.translate_tokens(ids)
    pool.translate_tokens(ids, out=out[: ids.numel()])
    pool.translate_tokens(ids, out=out, out_width=IDS_MOST)
    return True


def _alloc_tokens(traffic: Traffic, name: str) -> bool:
    pool, count = traffic.arena[name], traffic.draw.randint(1, 4 * IDS_MOST)
    ids = pool.alloc_tokens(count)
    traffic.tokens[name].append(Tokens(ids, -(-count // pool.page_size)))
    return True


def _extend(traffic: Traffic, name: str) -> bool:
    pool, draw = traffic.arena[name], traffic.draw
    lengths = [draw.randint(0, 3 * pool.page_size) for _ in range(draw.randint(1, 6))]
    pages = sum(-(-length // pool.page_size) for length in lengths)
    none = uploaded([0] * len(lengths), pool.virtual_to_physical.device)
    new, last = (uploaded(each, none.device) for each in (lengths, [-1] * len(lengths)))
    if draw.random() < 0.3:
        none, new, last = (each.to(torch.int32) for each in (none, new, last))
    ids = pool.extend(none, new, last, pages, sum(lengths))
    if pages:
        traffic.tokens[name].append(Tokens(ids, pages))
    return True


def _decode(traffic: Traffic, name: str) -> bool:
    pool = traffic.arena[name]
    before = traffic.decoding.get(name)
    if before is None:
        before = Decoding(uploaded([-1] * SEQUENCES, traffic.arena.device), 0, [])
    is_full = before.length % pool.page_size == 0
    last = pool.decode(traffic.form(before.last), SEQUENCES if is_full else 0)
    heads = [*before.heads, last] if is_full else before.heads
    traffic.decoding[name] = Decoding(last, before.length + 1, heads)
    if len(heads) == 3:
        for tokens in traffic.decoding.pop(name).heads:
            pool.free_tokens(traffic.form(tokens), SEQUENCES)
    return True


def _free_tokens(traffic: Traffic, name: str) -> bool:
    kept, pool = traffic.tokens[name], traffic.arena[name]
    if not kept:
        return False
    ids, pages = kept.pop(traffic.draw.randrange(len(kept)))
    mixed = traffic.form(torch.cat([ids[1::2], ids[::2]]))
    if not kept or traffic.draw.random() < 0.5:
        pool.free_tokens(mixed, pages)
    else:
        others = kept.pop()
        with traffic.arena.free_group():
            pool.free_tokens(mixed, pages)
            pool.free_tokens(others.ids, others.page_count)
    return True


def _free_run(traffic: Traffic, name: str) -> bool:
    pool, count = traffic.arena[name], traffic.draw.randint(1, 4 * IDS_MOST)
    pool.free_token_run(traffic.form(pool.alloc_tokens(count)))
    return True


def _bind(traffic: Traffic, name: str) -> bool:
    lender = traffic.lenders[name]
    assert lender is not None
    ids = traffic.pick(lender)
    if ids is None:
        return False
    traffic.arena[name].bind(traffic.form(ids))
    traffic.live[name].append(ids)
    return True


def _release(traffic: Traffic, name: str) -> bool:
    ids, pool, lender = traffic.pick(name), traffic.arena[name], traffic.lenders[name]
    if ids is None or lender is None:
        return False
    form = traffic.draw.choice(("ids", "gaps", "tokens", "group"))
    if form == "ids":
        pool.release(traffic.form(ids))
    elif form == "gaps":
        pool.release(traffic.form(torch.cat([traffic.gaps, ids])), ids.numel())
    elif form == "tokens":
        pool.release_tokens(traffic.form(ids * pool.page_size), ids.numel())
    else:
        with traffic.arena.free_group():
            pool.release(ids)
            traffic.arena[lender].free(traffic.form(ids))
        return True
    traffic.live[lender].append(ids)
    return True


def _cascade(traffic: Traffic, name: str) -> bool:
    ids, lender = traffic.pick(name), traffic.lenders[name]
    if ids is None or lender is None:
        return False
    pool, count = traffic.arena[lender], ids.numel()
    if traffic.draw.random() < 0.5:
        pool.free(traffic.form(ids), cascade={name: count})
    else:
        tokens = ids * pool.page_size
        pool.free_tokens(traffic.form(tokens), count, cascade={name: count})
    return True


Call = Callable[[Traffic, str], bool]

OF_OWN_IDS: tuple[Call, ...] = (
    _alloc, _alloc, _free, _flush, _look, _alloc_tokens, _extend, _decode, _decode, _free_tokens,
    _free_tokens, _free_run,
)  # fmt: skip

OF_BORROWED_IDS: tuple[Call, ...] = (_bind, _bind, _release, _cascade, _flush, _look)

"""An engine that counts in tokens: results equal to a slow reference, one launch each."""

import random
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvdefrag import OutOfPages, UsageError

from .rig import Rig, by_backend, state_of
from .test_free_scenarios import copies
from .watching import watching

DTYPES = [torch.int32, torch.int64]


def rig_of(backend: str, num_pages: int, page_size: int, **options) -> Rig:
    return Rig.of(backend, num_pages, page_size=page_size, **options)


def counted(rig: Rig, call) -> tuple[object, int]:
    """The call's result and its launches; nothing may be copied."""
    before, moved = rig.arena.stats().launches, copies(rig)
    result = call()
    assert copies(rig) == moved
    return result, rig.arena.stats().launches - before


class Sequences:
    """Sequences that grow and end, as lists of token ids: the slow reference."""

    def __init__(self, rig: Rig, page_size: int, seed: int) -> None:
        self.rig, self.page_size = rig, page_size
        self.tokens: list[list[int]] = []
        self.random = random.Random(seed)

    def pages(self, length: int) -> int:
        return -(-length // self.page_size)

    def check(self) -> None:
        """Every sequence is whole pages in order, no page is in two, and nothing else is live."""
        owners = []
        for tokens in self.tokens:
            owners += [token // self.page_size for token in tokens[:: self.page_size]]
            for place, token in enumerate(tokens):
                assert token % self.page_size == place % self.page_size
            for left, right in pairwise(tokens):
                assert right == left + 1 or right % self.page_size == 0
        assert len(set(owners)) == len(owners)
        rows = self.rig.pool.virtual_to_physical.tolist()
        assert sorted(owners) == [virtual for virtual, page in enumerate(rows) if page > 0]
        assert self.rig.pool.live_pages == len(owners)
        self.rig.arena.check(deep=True)

    def extend(self, growth: list[int], dtype: torch.dtype) -> None:
        prefix = [len(tokens) for tokens in self.tokens]
        new = [length + more for length, more in zip(prefix, growth, strict=True)]
        last = [tokens[-1] if tokens else -1 for tokens in self.tokens]
        page_count = sum(map(self.pages, new)) - sum(map(self.pages, prefix))
        batch = [torch.tensor(each, dtype=dtype) for each in (prefix, new, last)]
        call = (*batch, page_count, sum(growth))
        found, launches = counted(self.rig, lambda: self.rig.pool.extend(*call))
        assert launches == (1 if sum(growth) else 0)
        assert found.dtype == torch.int64
        grown = iter(found.tolist())
        for tokens, more in zip(self.tokens, growth, strict=True):
            tokens += [next(grown) for _ in range(more)]
        assert next(grown, None) is None

    def decode(self, dtype: torch.dtype) -> None:
        last = torch.tensor([t[-1] if t else -1 for t in self.tokens], dtype=dtype)
        page_count = sum(len(tokens) % self.page_size == 0 for tokens in self.tokens)
        found, launches = counted(self.rig, lambda: self.rig.pool.decode(last, page_count))
        assert launches == (1 if self.tokens else 0)
        for tokens, token in zip(self.tokens, found.tolist(), strict=True):
            tokens.append(token)

    def end(self, count: int, how: str, dtype: torch.dtype) -> None:
        ended = [self.tokens.pop(self.random.randrange(len(self.tokens))) for _ in range(count)]
        if how == "run":
            for tokens in ended:
                ids = torch.tensor(tokens, dtype=dtype)
                _, launches = counted(self.rig, lambda ids=ids: self.rig.pool.free_token_run(ids))
                assert launches == (1 if tokens else 0)
            return
        tokens = [token for each in ended for token in each]
        self.random.shuffle(tokens)
        ids = torch.tensor(tokens, dtype=dtype)
        pages = sum(self.pages(len(each)) for each in ended)
        _, launches = counted(self.rig, lambda: self.rig.pool.free_tokens(ids, pages))
        assert launches == (1 if tokens else 0)


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_sequences_grow_and_end(backend, page_size):
    rounds, most = by_backend(backend, (60, 40), (6, 9))
    sequences = Sequences(rig_of(backend, 4000, page_size), page_size, page_size)
    draw = sequences.random
    for number in range(rounds):
        dtype = DTYPES[number % 2]
        if len(sequences.tokens) < 8:
            sequences.tokens += [[] for _ in range(draw.randrange(4))]
        growth = [draw.choice([0, 1, draw.randrange(most)]) for _ in sequences.tokens]
        sequences.extend(growth, dtype)
        sequences.decode(dtype)
        sequences.check()
        sequences.end(draw.randrange(len(sequences.tokens) // 2 + 1), ["run", "set"][number % 2],
                      dtype)  # fmt: skip
        sequences.check()
        if number % 3 == 0:
            sequences.rig.pool.flush()
            sequences.check()


@given(st.data())
@settings(max_examples=60)
def test_any_tokens_on_the_host(data):
    page_size = data.draw(st.sampled_from([1, 2, 7]))
    sequences = Sequences(rig_of("host", 300, page_size), page_size, data.draw(st.integers(0, 99)))
    for _ in range(3):
        sequences.tokens += [[] for _ in range(data.draw(st.integers(0, 3)))]
        size = len(sequences.tokens)
        growth = data.draw(st.lists(st.integers(0, 20), min_size=size, max_size=size))
        sequences.extend(growth, torch.int64)
        sequences.end(data.draw(st.integers(0, size)), "set", torch.int32)
        sequences.check()


@pytest.mark.parametrize(("page_size", "token_count"), [(1, 5), (4, 16), (4, 13), (16, 1), (4, 0)])
def test_alloc_tokens(backend, page_size, token_count):
    rig = rig_of(backend, 20, page_size)
    tokens, launches = counted(rig, lambda: rig.pool.alloc_tokens(token_count))
    assert launches == (1 if token_count else 0)
    assert tokens.tolist() == [page_size + place for place in range(token_count)]
    rig.pool.free_token_run(tokens)
    assert rig.pool.live_pages == 0
    rig.arena.check(deep=True)
    again = rig.pool.alloc_tokens(token_count)
    assert sorted(set((again // page_size).tolist())) == sorted(set((tokens // page_size).tolist()))


def test_alloc_tokens_that_do_not_fit(backend):
    rig = rig_of(backend, 5, 4)
    before = state_of(rig.arena)
    with pytest.raises(OutOfPages) as refusal:
        rig.pool.alloc_tokens(17)
    assert (refusal.value.asked, refusal.value.available) == (5, 4)
    with pytest.raises(OutOfPages):
        rig.pool.decode(torch.full((5,), -1), 5)
    ids = torch.zeros(1, dtype=torch.int64)
    with pytest.raises(OutOfPages):
        rig.pool.extend(ids, ids + 20, ids - 1, 5, 20)
    assert state_of(rig.arena) == before


def test_free_of_a_token_run(backend):  # fault 15: tokens 32..79 are pages 2, 3 and 4
    rig = rig_of(backend, 9, 16)
    rig.pool.alloc(8)
    _, launches = counted(rig, lambda: rig.pool.free_token_run(torch.arange(32, 80)))
    assert launches == 1
    assert rig.pages(range(9)) == [0, 1, -1, -1, -1, 5, 6, 7, 8]


def test_free_of_a_token_set(backend):  # fault 15
    rig = rig_of(backend, 9, 16)
    rig.pool.alloc(8)
    tokens = torch.tensor([33, 34, 47, 48, 33])
    _, launches = counted(rig, lambda: rig.pool.free_tokens(tokens, 2))
    assert launches == 1
    assert rig.pages(range(9)) == [0, 1, -1, -1, 4, 5, 6, 7, 8]
    rig.arena.check(deep=True)


def test_token_calls_read_nothing():  # fault 15
    rig = rig_of("triton", 40, 4)
    tokens = rig.pool.alloc_tokens(100)
    ids = torch.tensor([0, 0]), torch.tensor([9, 3]), torch.tensor([-1, -1])
    last = torch.tensor([tokens[-1]])
    with watching(rig.arena) as watch:
        rig.pool.alloc_tokens(5)
        grown = rig.pool.extend(*ids, 4, 12)
        rig.pool.decode(last, 1)
        rig.pool.free_tokens(tokens[40:60], 5)
        rig.pool.free_token_run(tokens[:40])
        rig.pool.translate_tokens(grown[None], out_width=20)
    assert watch.counts() == (6, 0, 0)
    rig.arena.check(deep=True)


def listed(rig: Rig) -> tuple[list[int], ...]:
    """Tables and lists of the pool, in order."""
    band = rig.pool._band
    lists = band.holes.buffer[: band.holes.end], band.ids.buffer[: band.ids.recycled]
    return tuple(words.tolist() for words in (band.table.v2p, band.table.p2v, *lists))


def test_random_token_sets_are_their_distinct_pages(backend):  # fault 15
    rng = np.random.default_rng(15)
    for _ in range(by_backend(backend, 1000, 8)):
        rig, reference = rig_of(backend, 9, 4), rig_of(backend, 9, 4)
        for side in (rig, reference):
            side.pool.alloc(8)
        tokens = torch.from_numpy(rng.integers(4, 36, rng.integers(1, 30)))
        pages = list(dict.fromkeys((tokens // 4).tolist()))
        rig.pool.free_tokens(tokens, len(pages))
        reference.pool.free(pages)
        rig.arena.check()
        assert listed(rig) == listed(reference)


@pytest.mark.parametrize("debug", [False, True])
def test_seam_inside_a_page_in_two_calls(backend, debug):  # fault 20
    rig = rig_of(backend, 9, 8, debug=debug)
    tokens = rig.pool.alloc_tokens(20)
    rig.pool.alloc(2)
    rig.pool.free_tokens(tokens[:12], 2)
    with pytest.raises(UsageError, match="id 2"):
        free_and_check(rig, tokens[12:], 2)
    rig.arena.check(deep=True)
    rows = rig.pool.virtual_to_physical.tolist()
    assert [row > 0 for row in rows[1:4]] == [False, False, debug]


def free_and_check(rig: Rig, tokens: torch.Tensor, page_count: int) -> None:
    rig.pool.free_tokens(tokens, page_count)
    rig.arena.check()


@pytest.mark.parametrize("passed", [1, 3])
def test_count_that_differs(backend, passed):
    rig = rig_of(backend, 9, 8)
    tokens = rig.pool.alloc_tokens(64)
    rig.pool.free_tokens(tokens[6:20], passed)
    if passed < 3:
        with pytest.raises(UsageError, match=r"page_count .*: 3 pages"):
            rig.arena.check()
        assert rig.pool.live_pages == 7
    rig.arena.check(deep=True)
    with pytest.raises(UsageError, match="page_count: 2 tokens cannot be of 3 pages"):
        rig.pool.free_tokens(tokens[60:62], 3)
    with pytest.raises(UsageError, match="page_count: 2 tokens cannot be of 0 pages"):
        rig.pool.free_tokens(tokens[60:62], 0)
    rig.pool.free_tokens(tokens[60:62], 2)
    with pytest.raises(UsageError, match=r"page_count .*: 1 pages"):
        rig.arena.check()
    rig.arena.check(deep=True)


def test_growth_with_another_count_loses_nothing(backend):
    rig = rig_of(backend, 20, 4)
    last = rig.pool.alloc_tokens(4)[3:]
    for call in (
        lambda: rig.pool.decode(last.repeat(3), 1),
        lambda: rig.pool.decode(last.repeat(3) - 1, 2),
        lambda: rig.pool.extend(last * 0 + 4, last * 0 + 12, last, 1, 8),
        lambda: rig.pool.extend(last * 0 + 4, last * 0 + 8, last, 3, 4),
    ):
        live = int((rig.pool.virtual_to_physical > 0).sum())
        call()
        with pytest.raises(UsageError, match="page_count or token_count"):
            rig.arena.check()
        rig.arena.check(deep=True)
        assert live <= rig.pool.live_pages <= live + 1
    assert rig.pool.available() + rig.pool.live_pages == 19


def test_freed_under_a_lease(backend):
    rig = rig_of(backend, 20, 4)
    tokens = rig.pool.alloc_tokens(40)
    lease = rig.pool.lease([1])
    rig.pool.free_token_run(tokens[4:12])
    rig.pool.free_tokens(tokens[13:20], 2)
    assert rig.arena.stats().pools["a"].pending_pages == 4
    lease.release()
    assert rig.holes() == 4
    rig.arena.check(deep=True)


def test_pages_come_back_again_and_again(backend):
    """Marks of earlier calls do not count, also where their numbers start over."""
    rig = rig_of(backend, 9, 4)
    rig.pool._band.table._serial = 2**31 - 4
    for number in range(6):
        tokens = rig.pool.alloc_tokens(32).view(8, 4)
        ids = (tokens.flip(0) if number % 2 else tokens).reshape(-1)
        rig.pool.free_tokens(ids, 8)
        rig.arena.check(deep=True)
        assert rig.pool.live_pages == 0
    assert rig.pool._band.table._serial == 3

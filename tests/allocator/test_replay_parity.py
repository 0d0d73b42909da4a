"""A model decodes the same, to the last bit, over pages that move and over pages that never do.

Under pressure, pages are moved, taken away and computed again all the time, and every byte that
belongs to nobody is a NaN. A page that moved wrongly, an address that is off or a page that was
lost shows in the answers.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import pytest
import torch

from kvdefrag import MultiEndedAllocator
from kvdefrag.kernels.backend import HostBackend, TritonBackend

from .attention_model import (
    HEAD_DIM,
    KV_HEADS,
    LAYERS,
    MOST_TOKENS,
    VOCABULARY,
    AttentionModel,
    token_rows,
)
from .decoding import KV, Decoder
from .jobs import Job, largest_difference, make_jobs
from .pressed_arena import PressedArena
from .rig import by_backend


class Form(NamedTuple):
    """How much is decoded, and in how many pages: `few_pages` under pressure, else `many_pages`."""

    jobs: int
    most_prompt: int
    most_wanted: int
    slots: int
    few_pages: int
    many_pages: int
    neighbours: int


FULL = Form(80, 40, 24, slots=12, few_pages=64, many_pages=1500, neighbours=14)
SMALL = Form(4, 14, 10, slots=3, few_pages=14, many_pages=100, neighbours=6)


class Run(NamedTuple):
    """Decoded `jobs`, and over what."""

    jobs: list[Job]
    arena: PressedArena
    decoder: Decoder


class Parity(NamedTuple):
    """How far two runs agree; the difference is that of all logprobs."""

    equal_answers: int
    largest_difference: float


def decode(backend: str, form: Form, pressed: bool) -> Run:
    jobs = make_jobs(form.jobs, 0, form.most_prompt, form.most_wanted)
    num_pages = form.few_pages if pressed else form.many_pages
    arena = PressedArena(backend, KV, num_pages, form.neighbours, pressed)
    decoder = Decoder(arena, jobs, form.slots)
    decoder.run()
    return Run(jobs, arena, decoder)


@cache
def at_rest(backend: str, form: Form) -> Run:
    return decode(backend, form, pressed=False)


def decode_without_pages(form: Form) -> list[Job]:
    """Every sequence has rows of its own in a plain tensor: nothing is shared or translated."""
    jobs = make_jobs(form.jobs, 0, form.most_prompt, form.most_wanted)
    model = AttentionModel()
    rows = torch.zeros(form.slots * MOST_TOKENS, LAYERS, 2, KV_HEADS, HEAD_DIM)
    places = torch.arange(len(rows)).view(form.slots, MOST_TOKENS)
    for start in range(0, len(jobs), form.slots):
        batch = jobs[start : start + form.slots]
        while not all(job.done for job in batch):
            new = torch.zeros(2, form.slots, dtype=torch.int64)
            going = [(slot, job) for slot, job in enumerate(batch) if not job.done]
            for slot, job in going:
                new[:, slot] = torch.tensor([job.tokens[job.computed], job.computed])
            logprobs = model.forward(rows, places, tokens=new[0], positions=new[1])
            for slot, job in going:
                job.take(logprobs[slot])
    return jobs


def compare(left: list[Job], right: list[Job]) -> Parity:
    pairs = list(zip(left, right, strict=True))
    return Parity(
        sum(a.answer == b.answer for a, b in pairs),
        max(largest_difference(torch.stack(a.logprobs), torch.stack(b.logprobs)) for a, b in pairs),
    )


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_pressure_changes_no_answer_and_no_logprob(backend):
    form = by_backend(backend, FULL, SMALL)
    rest, pressed = at_rest(backend, form), decode(backend, form, pressed=True)
    assert [len(job.answer) for job in pressed.jobs] == [job.wanted for job in pressed.jobs]
    assert compare(pressed.jobs, rest.jobs) == Parity(form.jobs, 0.0)
    assert max(job.replay_difference for job in pressed.jobs) == 0.0
    assert pressed.arena.neighbour.wrong == []

    # The pressure was real.
    least = by_backend(backend, 200, 5)
    assert pressed.arena.arena.stats().moves > 4 * least
    assert pressed.decoder.preemptions > least
    assert pressed.decoder.evictions > least
    for cause in ("alloc", "neighbour", "idle flush", "urgent flush"):
        assert pressed.arena.moves[cause] > least // 8, cause
    assert pressed.decoder.computed > 1.5 * rest.decoder.computed


def test_pages_change_no_answer_and_no_logprob(backend):
    form = by_backend(backend, FULL, SMALL)
    plain = decode_without_pages(form)
    assert compare(at_rest(backend, form).jobs, plain) == Parity(form.jobs, 0.0)


def test_at_rest_nothing_moves_and_nothing_is_computed_twice(backend):
    rest = at_rest(backend, by_backend(backend, FULL, SMALL))
    decoder, stats = rest.decoder, rest.arena.arena.stats()
    assert (stats.moves, stats.layout_version, decoder.preemptions, decoder.evictions) == (0,) * 4
    fresh = sum(len(job.prompt) + job.wanted - 1 for job in rest.jobs)
    assert 0 < decoder.cache.hit_tokens == fresh - decoder.computed


def test_answers_are_varied(backend):
    """Or a model that ignores what it reads could pass."""
    jobs = at_rest(backend, by_backend(backend, FULL, SMALL)).jobs
    assert len({tuple(job.answer) for job in jobs}) == len(jobs)
    said = {token for job in jobs for token in job.answer}
    assert len(said) > by_backend(backend, 100, 10)


def test_a_move_that_copies_nothing_is_found(backend, monkeypatch):
    kind = by_backend(backend, HostBackend, TritonBackend)

    def move_pages(self, buffer, page_bytes, *batch):
        self.rebind(*batch)

    assert_found(backend, monkeypatch, kind, move_pages)


def test_a_copy_that_misses_one_number_is_found(monkeypatch):
    def copy_pages(self, buffer, sources, targets, page_bytes, record):
        pages = buffer[: buffer.size // page_bytes * page_bytes].reshape(-1, page_bytes)
        pages[targets, :-4] = pages[sources, :-4]

    assert_found("host", monkeypatch, HostBackend, copy_pages)


def test_addresses_of_the_forward_before_are_found(monkeypatch):
    earlier = []

    def translate_tokens(pool, token_ids):
        earlier.append(pool.virtual_to_physical.clone())
        old, now = earlier[-2:] if len(earlier) > 1 else earlier * 2
        pages = torch.where(old > 0, old, now)[token_ids // pool.page_size]
        return pages * pool.page_size + token_ids % pool.page_size

    assert_found("host", monkeypatch, MultiEndedAllocator, translate_tokens)


def assert_found(backend: str, monkeypatch, owner: type, broken: Callable[..., Any]) -> None:
    """With `broken` in place of its namesake, the comparison fails."""
    rest = at_rest(backend, SMALL)
    monkeypatch.setattr(owner, broken.__name__, broken)
    pressed = decode(backend, SMALL, pressed=True)
    assert pressed.arena.arena.stats().moves > 0
    found = compare(pressed.jobs, rest.jobs)
    assert found.equal_answers < len(rest.jobs)
    assert found.largest_difference > 0.0


def test_every_byte_of_no_live_page_is_poisoned():
    arena = PressedArena("host", KV, 12, 2, pressed=True)
    rows = token_rows(arena.pool)
    ids = arena.alloc(4)
    assert rows.isnan().all()
    rows[:] = 0
    arena.free(ids[:2])
    places = arena.pool.translate_tokens(torch.arange(ids[2] * 4, ids[3] * 4 + 4))
    assert (rows[places] == 0).all()
    assert rows.isnan().sum() == rows.numel() - rows[places].numel()
    arena.pack(7)
    assert arena.moves == {"start": 0, "alloc": 0, "free": 0, "urgent flush": 2}
    moved = arena.pool.translate_tokens(torch.arange(ids[2] * 4, ids[3] * 4 + 4))
    assert (rows[moved] == 0).all()
    assert rows[places].isnan().all()


def test_a_token_depends_on_its_own_sequence_alone():
    """What parity rests on: not on the slot, the other sequences or what padding points at."""
    model, slots, length = AttentionModel(), 12, 23
    rng = torch.Generator().manual_seed(5)
    old = torch.randn(length, LAYERS, 2, KV_HEADS, HEAD_DIM, generator=rng)
    found = []
    for slot in range(slots):
        rows = torch.randn(slots * MOST_TOKENS, LAYERS, 2, KV_HEADS, HEAD_DIM, generator=rng)
        places = torch.randperm(len(rows), generator=rng).view(slots, MOST_TOKENS)
        positions = torch.randint(MOST_TOKENS, (slots,), generator=rng)
        tokens = torch.randint(VOCABULARY, (slots,), generator=rng)
        rows[places[slot, :length]] = old
        rows[places[slot, length:]] = float("nan")
        positions[slot], tokens[slot] = length, 7
        found.append(model.forward(rows, places, tokens, positions)[slot])
    assert found[0].isfinite().all()
    assert all(torch.equal(logprobs, found[0]) for logprobs in found)

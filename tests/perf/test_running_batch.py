import numpy as np
import pytest

from kvdefrag.perf.content_keys import private_keys
from kvdefrag.perf.prefix_cache import Node
from kvdefrag.perf.running_batch import Job, RunningBatch
from kvdefrag.perf.trace import Request

PAGE_SIZE = 4
END = Node(block_hash=1, row=0, depth=1, parent=None)


@pytest.fixture
def batch():
    return RunningBatch(slots=3, page_size=PAGE_SIZE)


def job(private_tokens, output_tokens):
    return Job(Request(0, 512 + private_tokens, output_tokens, (1, 2)))


def test_steps_stop_where_a_page_is_needed_or_a_request_ends(batch):
    first = batch.add(job(3, 9), END, serial=1, page_count=1)
    second = batch.add(job(4, 3), END, serial=2, page_count=1)
    steps = []
    while batch.count:
        advanced = batch.advance()
        short = batch.short_of_a_page().tolist()
        batch.add_pages(np.array(short, dtype=np.int64))
        ended = list(batch.ended())
        steps.append((advanced, short, ended))
        for slot in ended:
            batch.remove(slot)
    assert steps == [
        (1, [second], []),
        (1, [first], []),
        (1, [], [second]),
        (3, [first], []),
        (3, [], [first]),
    ]


def test_removal_gives_what_is_needed_to_come_back(batch):
    request = job(3, 9)
    slot = batch.add(request, END, serial=5, page_count=1)
    batch.advance()
    batch.add_pages(batch.short_of_a_page())
    held = batch.remove(slot)
    assert held == (request, END, 5, 2, 0)
    assert request.generated == 2
    assert request.private_tokens == 3 + 2
    again = batch.add(request, END, serial=6, page_count=2)
    assert batch.advance() == PAGE_SIZE
    assert batch.short_of_a_page().tolist() == [again]


def test_keys_and_positions_continue_those_of_the_admission(batch):
    slot = batch.add(job(8, 9), END, serial=7, page_count=2)
    slots = np.array([slot])
    grown = []
    for _ in range(3):
        positions, keys = batch.growth(slots)
        grown.append((int(positions[0]), int(keys[0])))
        batch.add_pages(slots)
    assert grown == list(zip((2, 3, 4), private_keys(7, 0, 5)[2:].tolist(), strict=True))


def test_the_youngest_was_admitted_last_whatever_its_slot(batch):
    for serial in (1, 2, 3):
        batch.add(job(1, 5), END, serial, page_count=1)
    assert batch.full
    batch.remove(0)
    assert not batch.full
    slot = batch.add(job(1, 5), END, serial=4, page_count=1)
    assert batch.youngest() == slot == 0
    batch.remove(slot)
    assert batch.remove(batch.youngest()).serial == 3
    assert batch.remove(batch.youngest()).serial == 2


def test_empty_slots_neither_need_pages_nor_end(batch):
    batch.add(job(4, 100), END, serial=1, page_count=26)
    assert batch.advance() == 100
    assert batch.short_of_a_page().size == 0
    assert list(batch.ended()) == [0]

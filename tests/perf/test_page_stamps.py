import numpy as np
import pytest
import torch

from kvdefrag import Arena, PoolSpec
from kvdefrag.perf import page_cells, page_stamps
from kvdefrag.perf.content_keys import (
    block_keys,
    mix64,
    mix64_int,
    private_keys,
    state_keys,
)
from kvdefrag.perf.page_stamps import PageStamps, Verdict

PAGES = 21


def make(page_bytes, verify="full", seed=0):
    arena = Arena(page_bytes * 64, [PoolSpec("full", page_bytes)], device="cpu")
    verdict = Verdict()
    stamps = PageStamps("full", arena["full"], verdict, verify, seed)
    return arena["full"], stamps, verdict


@pytest.fixture(params=[1 << 18, 100], ids=["one chunk", "many chunks"])
def chunk_bytes(request, monkeypatch):
    monkeypatch.setitem(page_cells.CHUNK_BYTES, "cpu", request.param)


@pytest.fixture(params=["HostCells", "DeviceCells"])
def form(request, monkeypatch):
    monkeypatch.setattr(page_stamps, "page_cells", getattr(page_cells, request.param))


@pytest.mark.usefixtures("chunk_bytes", "form")
@pytest.mark.parametrize("page_bytes", [1, 3, 8, 13, 24, 37, 64])
def test_one_wrong_byte_is_found_wherever_it_is(page_bytes):
    pool, stamps, verdict = make(page_bytes)
    ids = pool.alloc(PAGES)
    keys = private_keys(1, 0, PAGES)
    stamps.write(ids, keys)
    stamps.compare(ids, keys, "before")
    assert (verdict.pages_checked, verdict.wrong_pages) == (PAGES, 0)
    for row in (0, 7, PAGES - 1):
        for byte in {0, page_bytes // 2, page_bytes - 1}:
            stamps, verdict = fresh(pool)
            page = int(pool.translate(ids[row : row + 1]))
            pool.pages[page, byte] ^= 0x10
            stamps.compare(ids, keys, "after")
            pool.pages[page, byte] ^= 0x10
            wrong = verdict.first_wrong
            assert verdict.wrong_pages == 1
            assert (wrong.pool, wrong.moment) == ("full", "after")
            assert (wrong.virtual_page, wrong.physical_page) == (int(ids[row]), page)
            assert (wrong.byte, wrong.expected ^ wrong.found) == (byte, 0x10)


def fresh(pool):
    verdict = Verdict()
    return PageStamps("full", pool, verdict, "full", 0), verdict


def test_the_first_wrong_page_is_kept_and_the_others_are_counted():
    pool, stamps, verdict = make(24)
    ids, keys = pool.alloc(PAGES), private_keys(1, 0, PAGES)
    stamps.write(ids, keys)
    pool.pages[pool.translate(ids[[3, 9, 11]])] = 0
    stamps.compare(ids, keys, "first")
    pool.pages[pool.translate(ids[[1]])] = 0
    stamps.compare(ids, keys, "second")
    assert verdict.wrong_pages == 7
    assert verdict.first_wrong.virtual_page == int(ids[3])
    assert str(verdict.first_wrong).startswith("first: pool full, virtual page")


def test_writing_touches_no_other_page():
    pool, stamps, _ = make(24)
    ids = pool.alloc(PAGES)
    pool.pages.fill_(0xAB)
    stamps.write(ids[::2], private_keys(1, 0, PAGES)[::2].copy())
    others = torch.ones(pool.num_pages, dtype=torch.bool)
    others[pool.translate(ids[::2])] = False
    assert bool((pool.pages[others] == 0xAB).all())


def test_pages_that_changed_places_are_wrong():
    pool, stamps, verdict = make(16)
    ids, keys = pool.alloc(PAGES), private_keys(1, 0, PAGES)
    stamps.write(ids, keys)
    stamps.compare(ids.flip(0), keys, "swapped")
    assert verdict.wrong_pages == PAGES - 1


def test_a_sample_is_the_same_for_writing_and_comparing():
    pool, stamps, verdict = make(16, verify="sample", seed=3)
    ids, keys = pool.alloc(50), private_keys(1, 0, 50)
    for _ in range(20):
        stamps.write(ids, keys)
        stamps.compare(ids, keys, "sample")
        keys = keys + np.uint64(1)
    assert verdict.wrong_pages == 0
    assert 20 < verdict.pages_checked < 120


def test_a_seed_chooses_the_sample():
    checked = []
    for seed in (1, 2, 1):
        pool, stamps, _ = make(16, verify="sample", seed=seed)
        ids = pool.alloc(60)
        stamps.write(ids, private_keys(1, 0, 60))
        checked.append(pool.pages.any(dim=1).tolist())
    assert checked[0] == checked[2] != checked[1]


def test_off_neither_writes_nor_compares():
    pool, stamps, verdict = make(16, verify="off")
    ids, keys = pool.alloc(5), private_keys(1, 0, 5)
    stamps.write(ids, keys)
    stamps.compare(ids, keys, "off")
    assert verdict == Verdict()
    assert not pool.pages.any()


def test_keys_are_distinct_over_kinds_and_places():
    keys = np.concatenate(
        [
            block_keys([0, 1, 2, 2**64 - 1], block_pages=32),
            *(private_keys(serial, 0, 50) for serial in range(1, 20)),
            state_keys(list(range(1, 200))),
        ]
    )
    assert len(np.unique(keys)) == len(keys)


def test_private_keys_can_be_continued():
    whole = private_keys(9, 0, 12)
    assert np.array_equal(np.concatenate([private_keys(9, 0, 5), private_keys(9, 5, 7)]), whole)


def test_one_number_mixes_as_an_array_does() -> None:
    values = np.array([0, 1, 2**32, 2**63 + 5, 2**64 - 1], dtype=np.uint64)
    assert [mix64_int(int(value)) for value in values] == mix64(values).tolist()

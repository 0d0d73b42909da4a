"""A whole batch: gather_virtual, then copy_pages that rebinds in the same launch."""

import random
from typing import Any

import pytest
import torch

from kvdefrag.kernels import copy
from kvdefrag.kernels.copy import Rebinding, copy_pages, copy_pages_host

from . import model
from .byte_buffer import ByteBuffer
from .interpreter import checked_memory, extent
from .support import State, bound, check, differences, ids, row, tables, unbound, words

TABLES = ("v2p", "p2v", "sources", "targets", "virtual_ids", "record")


def gathered(page_count: int, move_count: int) -> State:
    """A validated batch among ``page_count`` pages."""
    state = tables(page_count, page_count + 5, move_count + 3)
    chance = random.Random(move_count)
    state["sources"] = ids(chance.sample(bound(state, "p2v"), move_count))
    state["targets"] = ids(chance.sample(unbound(state, "p2v"), move_count))
    state["virtual_ids"] = words([-7] * (move_count + 2))
    return check("gather_virtual", state, *TABLES, 1, interpret=False)


def run_both(buffer: ByteBuffer, state: State) -> None:
    """Kernel and twin leave bytes and tables as the plain models do."""
    rows = {name: row(state, name) for name in TABLES}
    wanted = buffer.whole.clone()
    if not rows["record"][model.CORRUPT]:
        inner = buffer.whole[buffer.start : buffer.end].numpy().tobytes()
        pages = model.copy_pages(inner, rows["sources"], rows["targets"], buffer.page_bytes)
        wanted[buffer.start : buffer.end] = torch.frombuffer(bytearray(pages), dtype=torch.uint8)
        model.rebind(*(rows[name] for name in TABLES))
    for way in (copy_pages_host, copy_pages):
        after = {name: region.clone() for name, region in state.items()}
        whole, pages = buffer.clone_inner()
        given: dict[str, Any] = {name: after[name].inner for name in TABLES}
        if way is copy_pages_host:
            pages, given = pages.numpy(), {name: given[name].numpy() for name in TABLES}
        rebinding = Rebinding(given["v2p"], given["p2v"], given["virtual_ids"])
        lists = (given["sources"], given["targets"])
        extents = [extent(whole, buffer.start, buffer.end), *(r.extent for r in after.values())]
        with checked_memory(*extents):
            way(pages, *lists, buffer.page_bytes, given["record"], rebinding)
        assert torch.equal(whole, wanted), way.__name__
        for name in TABLES:
            changed = differences(after[name].whole, state[name].holding(rows[name]).whole)
            assert not changed, f"{way.__name__}: {name}"


# Fewer programs than 128 pairs each, as many, and many more, in both forms.
@pytest.mark.parametrize(
    ("page_bytes", "move_count"),
    [
        (1, 0), (1, 1), (1, 127), (1, 128), (1, 129), (1, 300), (8, 513), (24, 40), (656, 5),
        (6635, 2), (16384, 0), (16384, 1), (16384, 6), (16384 + 8, 2), (65536, 2),
    ],
)  # fmt: skip
def test_bytes_and_tables_move_together(page_bytes: int, move_count: int) -> None:
    page_count = 2 * move_count + 9
    run_both(ByteBuffer(page_bytes, page_count), gathered(page_count, move_count))


def test_more_pairs_than_one_share_in_the_chunked_form(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(copy, "CHUNKED_FROM_BYTES", 16)
    run_both(ByteBuffer(16, 270), gathered(270, 129))


def test_split_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy, "MAX_UNITS", 2100)
    run_both(ByteBuffer(64, 1301), gathered(1301, 600))


@pytest.mark.parametrize("page_bytes", [24, 16384])
def test_corrupt_state_stops_bytes_and_tables(page_bytes: int) -> None:
    state = gathered(20, 4)
    state["record"] = words([0] * 8 + [1] + [0] * 7)
    run_both(ByteBuffer(page_bytes, 20), state)


@pytest.mark.parametrize("page_bytes", [24, 16384])
def test_refused_id_stops_nothing(page_bytes: int) -> None:
    state = gathered(20, 4)
    state["record"] = words([1] * 8 + [0] * 8)
    run_both(ByteBuffer(page_bytes, 20), state)


@pytest.mark.parametrize("name", Rebinding._fields)
def test_launcher_refuses_bad_tables(name: str) -> None:
    good = Rebinding(*(torch.zeros(9, dtype=torch.int64) for _ in range(3)))
    pages, pairs = torch.zeros(96, dtype=torch.uint8), torch.ones(4, dtype=torch.int64)
    record = torch.zeros(16, dtype=torch.int64)
    short = pairs[: 3 * (name == "virtual_ids")]
    for bad in (good.v2p.int(), good.v2p.to("meta"), good.v2p[::2], short):
        with pytest.raises(ValueError, match=rf"^{name}: expected"):
            copy_pages(pages, pairs, pairs, 8, record, good._replace(**{name: bad}))
    assert not pages.any()

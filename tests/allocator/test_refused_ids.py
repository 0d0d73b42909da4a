"""Ids that only the device can refuse: nothing is corrupted, and the next look names them."""

import pytest
import torch

from kvdefrag import UsageError

from .rig import Rig, state_of

REFUSED = [
    ([5, 5], 5, "not allocated"),
    ([2, 6], 6, "not allocated"),
    ([8], 8, "not allocated"),
    ([9], 9, "out of range"),
    ([0, 3], 0, "out of range"),
    ([1, -1], -1, "out of range"),
    ([-(2**63)], -(2**63), "out of range"),
    ([2**62, 2], 2**62, "out of range"),
]
LOOKS = {
    "flush": lambda rig: rig.pool.flush(),
    "urgent flush": lambda rig: rig.pool.flush(urgent=True),
    "arena flush": lambda rig: rig.arena.flush(max_moves=0),
    "check": lambda rig: rig.arena.check(),
    "deep check": lambda rig: rig.arena.check(deep=True),
}


@pytest.fixture
def rig(backend) -> Rig:
    """Eight ids: 1 to 7 were handed out, 6 came back, 8 is fresh."""
    rig = Rig.of(backend, 9)
    rig.alloc(7)
    rig.free([6])
    return rig


def forget(rig: Rig, ids: list[int]) -> None:
    rig.live["a"] = [virtual for virtual in rig.live["a"] if virtual not in ids]


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
@pytest.mark.parametrize(("ids", "refused", "why"), REFUSED)
def test_next_look_names_the_id(rig, ids, refused, why, look):
    rig.pool.free(torch.tensor(ids))
    with pytest.raises(UsageError, match=f"virtual_ids: pool 'a'.*{why}.*virtual id {refused} "):
        look(rig)
    forget(rig, ids)
    rig.verify()


@pytest.mark.parametrize(("ids", "refused", "why"), REFUSED)
def test_all_pages_can_be_had_after_it(rig, ids, refused, why):
    rig.pool.free(torch.tensor(ids))
    with pytest.raises(UsageError):
        rig.arena.check()
    forget(rig, ids)
    rig.alloc(rig.pool.available())
    assert len(rig.live["a"]) == 8
    rig.free(rig.live["a"][::2])
    rig.flush(urgent=True)
    assert rig.span() == 4


def test_a_void_is_never_handed_out_as_a_page(rig):
    rig.pool.free(torch.tensor([6, 6, 6]))
    granted = rig.pool.alloc(4)
    assert rig.pool.live_pages == 7
    pages = rig.pool.translate(granted)
    bound = pages[pages > 0].tolist()
    assert len(set(bound)) == len(bound)
    assert not set(bound) & {1, 2, 3, 4, 5, 7}
    with pytest.raises(UsageError):
        rig.arena.check()
    rig.live["a"] += granted[pages > 0].tolist()
    assert rig.pool.live_pages == len(rig.live["a"])
    rig.arena.check(deep=True)


def test_first_refusal_wins(rig):
    rig.pool.free(torch.tensor([6]))
    rig.pool.free(torch.tensor([0]))
    with pytest.raises(UsageError, match="virtual id 6"):
        rig.arena.check()
    assert rig.arena.check() is None


def test_refusal_in_one_pool_leaves_the_other(backend):
    rig = Rig.pair(backend, 20)
    rig.alloc(6, "A")
    rig.alloc(6, "B")
    rig.free([2, 3], "B")
    rig.arena["A"].free(torch.tensor([2, 2]))
    with pytest.raises(UsageError, match="pool 'A'"):
        rig.arena["B"].flush()
    rig.live["A"].remove(2)
    rig.verify()
    assert rig.flush("B").moves == 2


def test_refusal_surfaces_in_an_allocation_that_flushes(backend):
    rig = Rig.pair(backend, 12)
    rig.alloc(6, "A")
    rig.alloc(5, "B")
    rig.arena["B"].free(torch.tensor([1, 1]))
    with pytest.raises(UsageError, match="virtual id 1"):
        rig.arena["A"].alloc(2)
    rig.live["B"].remove(1)
    rig.verify()
    rig.alloc(1, "A")


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("as_ids", [list, torch.tensor])
def test_debug_names_a_double_free_at_once(backend, as_ids, page_size):  # fault 17
    rig = Rig.of(backend, 9, page_size=page_size, debug=True)
    rig.alloc(8)
    for ids in ([3, 3], [1, 3, 3]):
        before = state_of(rig.arena)
        with pytest.raises(UsageError, match="3"):
            rig.pool.free(as_ids(ids))
        assert state_of(rig.arena) == before
    rig.free(as_ids([3]))
    before = state_of(rig.arena)
    with pytest.raises(UsageError, match=r"virtual_ids\[0\]: id 3 of pool 'a' is not allocated"):
        rig.pool.free(as_ids([3]))
    assert state_of(rig.arena) == before


def test_debug_names_a_double_free_when_nothing_is_live(backend):  # fault 17
    rig = Rig.of(backend, 9, debug=True)
    rig.free(rig.alloc(3))
    with pytest.raises(UsageError, match="id 3 of pool 'a' is not allocated"):
        rig.pool.free([3])


@pytest.mark.parametrize("refused", [0, -1, 9, 2**62])
def test_debug_names_an_id_out_of_range_at_once(backend, refused):
    rig = Rig.of(backend, 9, debug=True)
    rig.alloc(8)
    before = state_of(rig.arena)
    with pytest.raises(UsageError, match=rf"virtual_ids\[1\]: expected 1 to 8, got {refused}"):
        rig.pool.free(torch.tensor([2, refused]))
    assert state_of(rig.arena) == before


def script(backend: str) -> tuple[list[list[int]], dict]:
    """Good and refused ids mixed; what each call gave, and the state that is left."""
    rig = Rig.of(backend, 17)
    answers = [rig.pool.alloc(12)]
    rig.pool.free(torch.tensor([3, 4, 3, 0, 5]))
    answers.append(rig.pool.alloc(4))
    rig.pool.free(torch.tensor([9, 17, 10, 9]))
    answers.append(rig.pool.alloc(3))
    answers.append(rig.pool.translate(torch.arange(-1, 19)))
    state = state_of(rig.arena)
    for name in ("holes", "ids"):
        del state["a"][name]  # what lies past the lists' ends is never read
    band, words = rig.pool._band, rig.arena._shared.backend.tensor
    answers.append(words(band.holes.buffer[band.holes.head : band.holes.end]))
    answers.append(words(band.ids.buffer[: band.ids.recycled]))
    return [answer.tolist() for answer in answers], state


def test_backends_agree_on_refused_ids():
    assert script("host") == script("triton")

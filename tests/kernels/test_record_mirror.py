"""A fault is written where the record's mirror word points as well, and nowhere else."""

import pytest
import torch

from kvdefrag.kernels.bind import bind, unbind
from kvdefrag.kernels.gather import gather_virtual
from kvdefrag.kernels.record import CORRUPT, MIRROR, RECORD_WORDS, USAGE
from kvdefrag.kernels.take import Take

CALL_TAG = 37
GUARD = 2**61 + 5
PLACE = 20
"""Words of guard on either side of the mirror."""


class Memory:
    """Ids 1, 2 and 4 live on pages 3, 1 and 5; a record, and guarded memory for its mirror."""

    def __init__(self, mirrored: bool) -> None:
        self.v2p = torch.tensor([0, 3, 1, -1, 5, -1, -1, -1])
        self.p2v = torch.tensor([0, 2, -1, 1, -1, 4, -1, -1, -1])
        self.record = torch.zeros(RECORD_WORDS, dtype=torch.int64)
        self.around = torch.full((2 * PLACE + RECORD_WORDS,), GUARD)
        self.mirror = self.around[PLACE : PLACE + RECORD_WORDS]
        self.mirror.fill_(0)
        if mirrored:
            self.record[MIRROR.value] = self.mirror.data_ptr()

    def gather(self, sources: list[int], targets: list[int]) -> None:
        gather_virtual(
            self.v2p, self.p2v, torch.tensor(sources), torch.tensor(targets),
            torch.empty(len(sources), dtype=torch.int64), self.record, CALL_TAG,
        )  # fmt: skip

    def bind(self, pages: list[int], ids: list[int]) -> None:
        take = Take(len(pages), 0, len(pages), 0, 0, 1, 1, 0, len(ids), 1)
        bind(self.v2p, self.p2v, torch.tensor(pages), torch.tensor(ids), self.record, take,
             CALL_TAG)  # fmt: skip

    def unbind(self, ids: list[int]) -> None:
        room = torch.empty(2 * len(ids), dtype=torch.int64)
        unbind(self.v2p, self.p2v, torch.tensor(ids), room[: len(ids)], 0, room[len(ids) :], 0,
               self.record, CALL_TAG)  # fmt: skip

    def slots(self, words: torch.Tensor) -> tuple[list[int], list[int]]:
        """Both slots; the words of the mirror's address left out."""
        return words[: MIRROR.value].tolist(), words[CORRUPT.value :].tolist()

    @property
    def guards_intact(self) -> bool:
        outside = torch.cat((self.around[:PLACE], self.around[PLACE + RECORD_WORDS :]))
        return bool((outside == GUARD).all())


NOTHING = ([0] * 7, [0] * 8)
FAULTS = {
    "gather": (lambda m: m.gather([1, 2, 9], [4, 6, 7]), CORRUPT, [1, 4, CALL_TAG, 1, 2, 6, -1]),
    "bind": (lambda m: m.bind([7, 3, 1], [3, 5, 6]), CORRUPT, [1, 5, CALL_TAG, 1, -1, 3, 5]),
    "unbind": (lambda m: m.unbind([1, 3, 9]), USAGE, [1, 2, CALL_TAG, 1, -1, -1, 3]),
}


def with_disagreement(memory: Memory) -> None:
    memory.p2v[5] = 1
    memory.unbind([2, 4])


FAULTS["unbind, tables disagree"] = (with_disagreement, CORRUPT, [1, 7, CALL_TAG, 1, 5, -1, 4])


@pytest.mark.parametrize("mirrored", [True, False])
@pytest.mark.parametrize(("call", "slot", "wanted"), FAULTS.values(), ids=FAULTS)
def test_fault_is_mirrored(call, slot, wanted, mirrored):
    memory = Memory(mirrored)
    address = int(memory.record[MIRROR.value])
    call(memory)
    assert memory.record[slot.value : slot.value + 7].tolist() == wanted
    if mirrored:
        assert memory.slots(memory.mirror) == memory.slots(memory.record)
    else:
        assert memory.slots(memory.mirror) == NOTHING
    assert memory.mirror[MIRROR.value] == 0
    assert memory.record[MIRROR.value] == address
    assert memory.guards_intact


@pytest.mark.parametrize("mirrored", [True, False])
def test_good_calls_write_no_mirror(mirrored):
    memory = Memory(mirrored)
    memory.mirror.fill_(GUARD)
    memory.gather([1, 3], [4, 6])
    memory.bind([7, 2], [3, 5])
    memory.unbind([1, 4])
    assert memory.slots(memory.record) == NOTHING
    assert (memory.around == GUARD).all()


def test_first_fault_stays_in_the_mirror():
    """And the two slots are independent."""
    memory = Memory(mirrored=True)
    memory.unbind([3])
    memory.unbind([6, 1])
    memory.gather([2], [4])
    memory.gather([9], [4])
    usage, corrupt = memory.slots(memory.mirror)
    assert (usage[3], usage[6]) == (0, 3)
    assert corrupt == [1, 4, CALL_TAG, 0, 2, 4, -1, 0]
    assert memory.slots(memory.record) == (usage, corrupt)


def test_one_of_many_programs_writes_it():
    """Bad lanes in several programs: the mirror holds what the record holds, from one lane."""
    memory = Memory(mirrored=True)
    memory.unbind([1, *[6] * 3000])
    usage, corrupt = memory.slots(memory.mirror)
    assert usage == memory.record[: MIRROR.value].tolist()
    assert (usage[1], usage[3], usage[6]) == (2, 1, 6)
    assert corrupt == NOTHING[1]
    assert memory.guards_intact

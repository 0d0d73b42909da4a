"""The watching modes bite: every way to read a tensor on the host is seen."""

import pytest
import torch

from kvdefrag.allocator.compactor import Compactor
from kvdefrag.allocator.pool import MultiEndedAllocator
from kvdefrag.allocator.snapshot import SnapshotReader

from .rig import Rig
from .watching import ScalarRead, watching

READS = {
    "item": lambda words: words[:1].item(),
    "tolist": lambda words: words.tolist(),
    "cpu": lambda words: words.cpu(),
    "numpy": lambda words: words.numpy(),
    "bool": lambda words: bool(words[:1] > 5),
    "int": lambda words: int(words[:1]),
    "index": lambda words: range(words[:1]),
    "float": lambda words: float(words[:1]),
    "element": lambda words: words[0],
    "last element": lambda words: words[-1],
    "iteration": lambda words: list(words),
    "membership": lambda words: 3 in words,
    "nonzero": lambda words: words.nonzero(),
    "where": lambda words: torch.where(words > 1),
    "unique": lambda words: words.unique(),
    "unique_consecutive": lambda words: torch.unique_consecutive(words),
    "mask": lambda words: words[words > 1],
    "masked_select": lambda words: words.masked_select(words > 1),
    "masked store": lambda words: words.__setitem__(words > 1, 2),
    "equal": lambda words: torch.equal(words, words),
    "operator": lambda words: torch.ops.aten._local_scalar_dense(words[:1]),
}
HARMLESS = {
    "slice": lambda words: words[1:3],
    "gather": lambda words: words[torch.zeros_like(words)],
    "size": lambda words: (words.numel(), words.shape, words.dim(), words.stride(0)),
    "arithmetic": lambda words: (words + 1).sum(),
    "same device": lambda words: words.to(words.device),
}


def free_and_flush(rig: Rig, ids: torch.Tensor) -> None:
    rig.pool.free(ids)
    rig.pool.flush()


@pytest.fixture(scope="module")
def rig() -> Rig:
    return Rig.of("triton", 9)


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_read_is_seen(rig, read):
    with pytest.raises(ScalarRead), watching(rig.arena):
        read(torch.arange(8))


@pytest.mark.parametrize("work", HARMLESS.values(), ids=HARMLESS)
def test_work_is_no_read(rig, work):
    with watching(rig.arena):
        work(torch.arange(8))


@pytest.mark.parametrize(
    ("owner", "method"),
    [(SnapshotReader, "read"), (Compactor, "_stage"), (MultiEndedAllocator, "free")],
)
def test_read_inside_the_library_is_seen(monkeypatch, owner, method):
    original = getattr(owner, method)
    rig = Rig.of("triton", 9)

    def reading(self, *arguments):
        rig.pool._band.holes.buffer[:1].item()
        return original(self, *arguments)

    monkeypatch.setattr(owner, method, reading)
    rig.pool.alloc(8)
    ids = torch.tensor([2])
    with watching(rig.arena), pytest.raises(ScalarRead):
        free_and_flush(rig, ids)


def test_second_copy_is_counted(monkeypatch):
    original = SnapshotReader.read

    def twice(self, *parts):
        original(self, *parts)
        return original(self, *parts)

    monkeypatch.setattr(SnapshotReader, "read", twice)
    rig = Rig.of("triton", 9)
    ids = rig.pool.alloc(8)
    with watching(rig.arena) as watch:
        free_and_flush(rig, ids[1:2])
    assert watch.down == 2

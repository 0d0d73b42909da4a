"""An arena under test: every page carries its owner's mark, and every step is checked."""

from typing import Any, TypeVar

import torch
from hypothesis import settings

from kvdefrag import Arena, FlushResult, PoolSpec
from kvdefrag.allocator.free_pages import BorrowedIds
from kvdefrag.allocator.testing import stamp_pages, wrong_pages

GUARD_BYTES = 64
GUARD, UNUSED = 0x5A, 0xA5

T = TypeVar("T")


def by_backend(backend: str, host: T, triton: T) -> T:
    """The full form for the host, a small one for the interpreter: milliseconds a program."""
    return host if backend == "host" else triton


def examples(backend: str, host: int, triton: int, **more: Any) -> settings:
    return settings(max_examples=by_backend(backend, host, triton), **more)


def state_of(arena: Arena) -> dict[str, Any]:
    """What a failed call must leave as it was: tables, lists, counts, hazards and bytes."""
    record, hazards = arena._shared.record, arena._shared.hazards
    state: dict[str, Any] = {
        "record": bytes_of(record.words),
        "stopped": record.stopped,
        "call_number": record.call_number,
        "layout_version": arena.layout_version,
        "buffer": None if arena.buffer is None else bytes_of(arena.buffer),
        "blocks": [id(block) for block in hazards._blocks],
        "forwards": [
            (id(forward.fence), {index: list(map(places, sets)) for index, sets in written.items()})
            for forward in hazards._forwards
            for written in (forward.written,)
        ],
    }
    for name, pool in arena.pools.items():
        band = pool._band
        state[name] = {
            "v2p": bytes_of(pool.virtual_to_physical),
            "p2v": bytes_of(pool.physical_to_virtual),
            "holes": bytes_of(band.holes.buffer),
            "hole list": (band.holes.head, band.holes.sorted_end, band.holes.end),
            "ids": b"" if band.ids.buffer is None else bytes_of(band.ids.buffer),
            "id list": id_list(band.ids),
            "counts": (band.live, band.span, band.peak_holes),
            "leases": [(id(lease), places(lease.page_set)) for lease in band.hazards.leases],
            "pending": [
                (places(each.page_set), list(map(id, each.fences)), list(map(id, each.leases)))
                for each in band.hazards.pending
            ],
        }
    return state


def id_list(ids: Any) -> tuple[Any, ...]:
    """How a pool's own ids are listed, or how many borrowed ones have a page."""
    if isinstance(ids, BorrowedIds):
        return ids.bound, ids.count
    return ids.recycled, ids.next_fresh, *ids.set_aside.items()


def places(page_set: Any) -> tuple[int, bytes]:
    return page_set.count, bytes_of(page_set.pages)


def bytes_of(words: Any) -> bytes:
    return (words.numpy() if isinstance(words, torch.Tensor) else words).tobytes()


class Rig:
    """An arena in guarded memory, and which ids of its pools are live."""

    def __init__(
        self, backend: str, *pools: PoolSpec, total_bytes: int, offset: int = 0, debug: bool = False
    ) -> None:
        start = GUARD_BYTES + offset
        self.memory = torch.full((start + total_bytes + GUARD_BYTES,), GUARD, dtype=torch.uint8)
        self.buffer = self.memory[start : start + total_bytes]
        self.buffer.fill_(UNUSED)
        self.arena = Arena(total_bytes, pools, backend=backend, debug=debug, buffer=self.buffer)
        self.live: dict[str, list[int]] = {spec.name: [] for spec in pools}
        self.sink_bytes = max(spec.page_bytes for spec in pools)
        self.pool = self.arena[pools[0].name]

    @classmethod
    def of(cls, backend: str, num_pages: int, grows: Any = "up", **options: Any) -> "Rig":
        """One pool "a" of ``num_pages`` pages, the sink included: U(P) or D(P)."""
        page_bytes = options.pop("page_bytes", 8)
        offset, debug = options.pop("offset", 0), options.pop("debug", False)
        spec = PoolSpec("a", page_bytes, grows=grows, **options)
        total_bytes = num_pages * page_bytes
        return cls(backend, spec, total_bytes=total_bytes, offset=offset, debug=debug)

    @classmethod
    def pair(cls, backend: str, num_pages: int, **options: Any) -> "Rig":
        """Pool A grows up and B down, in pages of 8 bytes; ``options`` are A's."""
        specs = PoolSpec("A", 8, **options), PoolSpec("B", 8, grows="down")
        return cls(backend, *specs, total_bytes=num_pages * 8)

    def alloc(self, page_count: int, name: str = "a") -> torch.Tensor:
        before, version = self.v2p(), self.arena.layout_version
        ids = self.arena[name].alloc(page_count)
        self.got(name, ids)
        moved = self.changed_rows(before, fresh={name: ids})
        assert (moved > 0) == (self.arena.layout_version != version)
        self.verify()
        return ids

    def got(self, name: str, ids: torch.Tensor) -> None:
        """Note and stamp pages that an allocation handed out."""
        stamp_pages(self.arena[name], ids)
        self.live[name] += ids.tolist()

    def free(self, ids: Any, name: str = "a") -> None:
        self.arena[name].free(ids)
        gone = set(ids.tolist() if isinstance(ids, torch.Tensor) else ids)
        self.live[name] = [virtual for virtual in self.live[name] if virtual not in gone]
        self.verify()

    def flush(self, name: str = "a", **limits: Any) -> FlushResult:
        before, version = self.v2p(), self.arena.layout_version
        result = self.arena[name].flush(**limits)
        assert self.changed_rows(before) == result.moves
        assert (self.arena.layout_version != version) == (result.moves > 0)
        assert result.bytes_moved == result.moves * self.arena[name].page_bytes
        assert result.pending == self.pending(name)
        self.verify()
        return result

    def v2p(self) -> dict[str, torch.Tensor]:
        return {name: pool.virtual_to_physical.clone() for name, pool in self.arena.pools.items()}

    def changed_rows(
        self, before: dict[str, torch.Tensor], fresh: dict[str, torch.Tensor] | None = None
    ) -> int:
        changed = 0
        for name, now in self.v2p().items():
            differs = now != before[name]
            if fresh and name in fresh:
                differs[fresh[name]] = False
            changed += int(differs.sum())
        return changed

    def verify(self) -> None:
        """The invariants, the bytes of every live page, and the bytes that nobody may touch."""
        self.arena.check(deep=True)
        for name, pool in self.arena.pools.items():
            assert pool.live_pages == len(self.live[name])
            assert wrong_pages(pool, torch.tensor(self.live[name], dtype=torch.int64)) == []
        start = self.buffer.storage_offset()
        assert (self.buffer[: self.sink_bytes] == UNUSED).all()
        assert (self.memory[:start] == GUARD).all()
        assert (self.memory[start + self.buffer.numel() :] == GUARD).all()

    def span(self, name: str = "a") -> int:
        return self.arena.stats().pools[name].span_pages

    def holes(self, name: str = "a") -> int:
        return self.arena.stats().pools[name].hole_pages

    def pending(self, name: str = "a") -> int:
        return self.arena.stats().pools[name].pending_pages

    def pages(self, ids: Any, name: str = "a") -> list[int]:
        """Where ``ids`` are, read from the table itself."""
        return self.arena[name].virtual_to_physical[torch.as_tensor(ids)].tolist()

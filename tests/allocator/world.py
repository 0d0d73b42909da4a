"""An arena beside a dict of pages, with forwards, leases and blocks; every step is judged."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from kvdefrag import Arena, FlushResult
from kvdefrag.allocator.invariants import byte_map

from .formula import Layout, ceil
from .forwards import Access, Page, PageBytes
from .in_flight import InFlight
from .ledger import Ledger


class Held:
    """A lease, and where its pages are."""

    def __init__(self, handle: Any, accesses: list[Access]) -> None:
        self.handle = handle
        self.accesses = accesses


class World:
    """The arena, and what its user knows: `live` pages by pool and virtual id.

    Forwards run in the order of their launch, when their fence ends or the stream waits for it.
    `vacated`: pages that wait for fences or leases. `written`: pages that forwards will write.
    """

    def __init__(self, layout: Layout, backend: str = "host", debug: bool = False) -> None:
        self.layout = layout
        self.arena = Arena(layout.total_bytes, layout.specs, "cpu", backend, debug)
        self.bytes_of = {
            spec.name: PageBytes(self.arena.buffer, spec.page_bytes) for spec in layout.specs
        }
        self.live: dict[str, dict[int, Page]] = {spec.name: {} for spec in layout.specs}
        self._rows = {
            name: pool.virtual_to_physical.numpy() for name, pool in self.arena.pools.items()
        }
        page_bytes = {spec.name: spec.page_bytes for spec in layout.specs}
        self.vacated = Ledger(layout.total_bytes, page_bytes)
        self.written = Ledger(layout.total_bytes, page_bytes)
        self.in_flight = InFlight(self)
        self.leases: dict[str, list[Held]] = {spec.name: [] for spec in layout.specs}
        self.blocks: list[Any] = []
        self.counts: Counter[str] = Counter()

    def alloc(self, name: str, page_count: int, soft: bool = True) -> list[int] | None:
        """The ids granted, or None. What `available` promises is what is granted."""
        promised = self.available(name)
        with self.moves(idle=False):
            pool = self.arena[name]
            ids = pool.try_alloc(page_count) if soft or page_count > promised else None
            if ids is None and page_count <= promised:
                ids = pool.alloc(page_count)
        assert (ids is not None) == (page_count <= promised), (page_count, promised)
        self.counts["alloc"] += 1
        return None if ids is None else self._granted(name, ids.tolist(), page_count)

    def alloc_many(self, asked: dict[str, int]) -> dict[str, list[int]]:
        """Ids by pool, of what is known to fit."""
        with self.moves(idle=False):
            granted = self.arena.alloc_many(asked)
        self.counts["alloc_many"] += 1
        return {name: self._granted(name, granted[name].tolist(), asked[name]) for name in asked}

    def _granted(self, name: str, ids: list[int], page_count: int) -> list[int]:
        assert len(set(ids)) == len(ids) == page_count
        assert not self.live[name].keys() & set(ids)
        places = self.places(name, ids)
        stale = self.in_flight.stale_writes()
        for virtual, place in zip(ids, places, strict=True):
            assert place > 0
            assert not self.vacated.touches((name, place)), f"{name}: page {place} is pending"
            assert not self.written.touches_others((name, place)), f"{name}: {place} is written"
            page = Page(self.new_stamp(), written=(name, place) not in stale)
            if self.spec(name).zero_on_alloc:
                assert page.stamp is not None, f"{name}: page {place} is zeroed under its writer"
                assert not self.bytes_of[name].pages[place].any()
            self.live[name][virtual] = page
            if page.stamp is not None:
                self.bytes_of[name].write([place], [page.stamp])
        return ids

    def free(self, name: str, ids: list[int], given: Any = None) -> None:
        """Free `ids`, passed as `given`."""
        places = self.places(name, ids)
        self.check_bytes(name, ids)
        self.arena[name].free(torch.tensor(ids, dtype=torch.int64) if given is None else given)
        self.counts["free"] += 1
        self.forget(name, ids, places)

    def held(self, name: str) -> set[int]:
        """Ids of a pool that have a page in one that borrows them."""
        return {v for each in self.layout.borrowers_of(name) for v in self.live[each]}

    def forget(self, name: str, ids: list[int], places: list[int]) -> None:
        """`ids` are not live any more; with leases in the pool their `places` are not free yet."""
        for virtual, place in zip(ids, places, strict=True):
            self.live[name].pop(virtual).live = False
            self.vacated.keep((name, place), self.leases[name])

    def flush(self, name: str | None = None, **limits: Any) -> dict[str, FlushResult]:
        """Flush one pool, or with None the arena."""
        urgent = limits.get("urgent", False)
        with self.moves(idle=not urgent) as moved:
            result = (
                self.arena.flush(**limits) if name is None else self.arena[name].flush(**limits)
            )
        results = result if name is None else {name: result}
        self.counts["flush"] += 1
        assert {pool: done.moves for pool, done in results.items()} == {
            pool: moved[pool] for pool in results
        }
        limited = any(limits.get(limit) is not None for limit in ("max_moves", "max_bytes"))
        for pool, done in results.items():
            self._judge(pool, done, urgent, limited)
        return results

    def _judge(self, name: str, done: FlushResult, urgent: bool, limited: bool) -> None:
        stats = self.arena.stats().pools[name]
        assert done.pending == stats.pending_pages
        allowed = {"": True, "budget": limited, "blocked": self.blocks, "lease": self.leases[name]}
        allowed["forward"] = not urgent and self.in_flight.unfinished
        assert allowed[done.stopped_by], done
        free_to_move = urgent or not (self.in_flight.unfinished or limited)
        if free_to_move and not (self.blocks or self.leases[name]):
            assert stats.span_pages == stats.live_pages == len(self.live[name])
            assert done.stopped_by == ""

    @contextmanager
    def moves(self, idle: bool) -> Any:
        """Watch what the body moves, in pages by pool name, and judge it."""
        before = {name: self.rows(name).copy() for name in self.live}
        moved: Counter[str] = Counter()
        yield moved
        for name, rows in before.items():
            now = self.rows(name)
            changed = np.flatnonzero((rows != now) & (rows != -1))
            if changed.size:
                moved[name] = changed.size
                self._judge_moves(name, rows[changed].tolist(), now[changed].tolist(), idle)
        self.counts["moves"] += moved.total()
        self.counts["moves under forwards"] += moved.total() if self.in_flight.outstanding else 0

    def _judge_moves(self, name: str, old: list[int], new: list[int], idle: bool) -> None:
        assert not self.blocks
        outstanding = self.in_flight.outstanding
        assert idle or not outstanding, "the stream waited for no forward"
        for place in old:
            assert not self.written.places[name, place], f"{name}: {place} moved under its writer"
            self.vacated.keep((name, place), outstanding)
        leased = {access.place for held in self.leases[name] for access in held.accesses}
        assert not leased & set(old)
        for place in new:
            assert not self.vacated.touches((name, place)), f"{name}: page {place} is pending"
            assert not self.written.touches((name, place)), f"{name}: page {place} is written"

    def available(self, name: str) -> int:
        """What `available` answers, which is what the formula says."""
        available = self.arena[name].available()
        assert available == self.room(name)
        return available

    def room(self, name: str, asked: Mapping[str, int] | None = None) -> int:
        """Pages that can be granted beside what the others are `asked` for."""
        asked, spec, live = asked or {}, self.spec(name), {n: len(p) for n, p in self.live.items()}
        others = (other for other in self.live if other != name)
        counts = {other: self._held(other) + asked.get(other, 0) for other in others}
        spans = self.spans()
        fixed = {other: spans[other] for other in spans if self.blocks or self.leases[other]}
        low, high = self.layout.edges(name, counts, fixed)
        room = high // spec.page_bytes - ceil(low, spec.page_bytes) - self._held(name)
        return max(0, min(self.layout.ids_left(name, live, asked), room))

    def fits(self, asked: Mapping[str, int]) -> bool:
        """What `fits` answers, which is what the formula says."""
        answer = self.arena.fits(asked)
        assert answer == all(pages <= self.room(name, asked) for name, pages in asked.items())
        return answer

    def spans(self) -> dict[str, tuple[int, int]]:
        """The bytes of every band that has pages, as it lies now."""
        bands = {pool._band for pool in self.arena.pools.values()}
        spans = {part[0]: part[1:] for part in byte_map(list(bands), self.layout.total_bytes)}
        return {n: spans[f"band of {n!r}"] for n in self.live if f"band of {n!r}" in spans}

    def _held(self, name: str) -> int:
        """Live pages, and those that wait for a lease."""
        leased = [kept for kept in self.vacated if kept.place[0] == name]
        return len(self.live[name]) + sum(
            any(isinstance(holder, Held) for holder in kept.holders) for kept in leased
        )

    def block(self) -> None:
        """Block moves once more."""
        self.blocks.append(self.arena.block_moves(f"holder {len(self.blocks) % 3}"))
        self.counts["block"] += 1

    def unblock(self, index: int) -> None:
        """End one block."""
        self.blocks.pop(index).release()

    def lease(self, name: str, ids: list[int]) -> None:
        """Lease pages."""
        accesses = self.in_flight.accesses({name: ids})
        handle = self.arena[name].lease(torch.tensor(ids, dtype=torch.int64))
        self.leases[name].append(Held(handle, accesses))
        self.counts["lease"] += 1

    def release(self, name: str, index: int) -> None:
        """End a lease, whose holder has written all its pages where they were, freed ones too."""
        held = self.leases[name].pop(index)
        busy = self.in_flight.pages()
        for access in held.accesses:
            if not access.page.live or (id(access.page) not in busy and access.page.stamp):
                stamp = access.page.stamp = access.page.after = self.new_stamp()
                self.bytes_of[name].write([access.place], [stamp])
        held.handle.release()
        self.vacated.ended(held)

    def drain(self) -> None:
        """Everything ends: then an idle flush brings every page back."""
        while self.in_flight.unfinished:
            self.in_flight.finish(0)
        while self.blocks:
            self.unblock(0)
        for name, leases in self.leases.items():
            while leases:
                self.release(name, 0)
        self.flush()
        for name, pages in self.live.items():
            stats = self.arena.stats().pools[name]
            assert (stats.span_pages, stats.pending_pages) == (len(pages), 0)
        self.check()

    def clear(self) -> None:
        """Every page free; there are no leases."""
        self.arena.clear()
        assert not self.in_flight.outstanding or not self.in_flight.stale_writes()
        for pages in self.live.values():
            for page in pages.values():
                page.live = False
            pages.clear()
        self.vacated.clear()

    def check_bytes(self, name: str, ids: Sequence[int]) -> None:
        """Every page of `ids` holds what was written to it last."""
        live = self.live[name]
        ids = [virtual for virtual in ids if live[virtual].stamp is not None]
        stamps = [live[virtual].stamp for virtual in ids]
        wrong = self.bytes_of[name].wrong(self.places(name, ids), stamps)
        assert not wrong, f"{name}: wrong bytes in pages of {[ids[index] for index in wrong]}"

    def check(self) -> None:
        """Everything: bytes, tables, what is kept, capacity, and the arena's own rules."""
        for name, pages in self.live.items():
            assert set(np.flatnonzero(self.rows(name) != -1).tolist()) == {0, *pages}
            self.check_bytes(name, list(pages))
            self.available(name)
            for held in self.leases[name]:
                for access in held.accesses:
                    assert access.page.live or self.vacated.places[name, access.place]
        self._check_kept()
        assert sum(self.arena.stats().move_blocks.values()) == len(self.blocks)
        self.arena.check(deep=True)

    def _check_kept(self) -> None:
        spans = self.spans()
        for ledger in (self.vacated, self.written):
            for kept in ledger:
                start, end = spans.get(kept.place[0], (0, 0))
                inside = start <= kept.start and kept.end <= end
                assert inside or kept.end <= self.layout.sink_bytes, f"absorbed: {kept}"

    def new_stamp(self) -> int:
        """One that was never used."""
        self.counts["stamps"] += 1
        return self.counts["stamps"]

    def rows(self, name: str) -> np.ndarray:
        """The v2p table, for reading."""
        return self._rows[name]

    def places(self, name: str, ids: Sequence[int]) -> list[int]:
        """Where `ids` are now."""
        return self._rows[name][list(ids)].tolist()

    def spec(self, name: str) -> Any:
        """The specification of a pool."""
        return self.layout.spec(name)

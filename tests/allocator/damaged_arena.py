"""Arenas with one fault injected, in guarded tables, and what the checker has to say of it."""

from collections.abc import Callable
from typing import NamedTuple

import torch

from kvdefrag import PoolSpec
from kvdefrag.allocator.band import Band
from kvdefrag.allocator.testing import ManualFence

from .rig import Rig

V2P, P2V = "virtual_to_physical", "physical_to_virtual"
GUARD_WORD = 77
POOLS = ("A", "B")


class Damage(NamedTuple):
    """``inject(band)`` breaks pool "A"; the checker says ``finding``.

    In ``finding``, {live} and {span} are the right counts, and those with _up and _down the wrong
    ones. ``doubtful``: ids whose page is not certain afterwards; every other id keeps its page.
    """

    inject: Callable[[Band], None]
    finding: str
    doubtful: tuple[int, ...] = ()


def row(table: str, index: int, value: int) -> Callable[[Band], None]:
    def inject(band: Band) -> None:
        getattr(band.table, table)[index] = value

    return inject


def entry(list_name: str, index: int, value: int) -> Callable[[Band], None]:
    """``index`` counts from the start of the list."""

    def inject(band: Band) -> None:
        start = band.holes.head if list_name == "holes" else 0
        getattr(band, list_name).buffer[start + index] = value

    return inject


def drift(counter: str, by: int) -> Callable[[Band], None]:
    def inject(band: Band) -> None:
        setattr(band, counter, getattr(band, counter) + by)

    return inject


def list_length(list_name: str, by: int) -> Callable[[Band], None]:
    def inject(band: Band) -> None:
        if list_name == "holes":
            band.holes.end += by
        else:
            band.ids.recycled += by

    return inject


# Ids 1 to 12 were handed out and stood on pages 1 to 12; 2, 3 and 9 are free: page 2 is a hole, and
# so is 9; 12 stands on page 3, which made page 12 free or pending.
DAMAGES = {
    "two ids on one page": Damage(row(V2P, 8, 5), "v2p[8] is 5, p2v there is 5", (5, 8)),
    "v2p unbound": Damage(row(V2P, 8, -1), "p2v[8] is 8, v2p there is -1", (8,)),
    "v2p of the sink": Damage(row(V2P, 8, 0), "v2p[8] is 0, p2v there is out of range", (8,)),
    "v2p negative": Damage(row(V2P, 8, -7), "v2p[8] is -7", (8,)),
    "v2p past the end": Damage(row(V2P, 8, 40), "v2p[8] is 40, p2v there is out of range", (8,)),
    "v2p huge": Damage(row(V2P, 8, 2**62), f"v2p[8] is {2**62}", (8,)),
    "v2p lowest": Damage(row(V2P, 8, -(2**63)), f"v2p[8] is {-(2**63)}", (8,)),
    "v2p to a hole": Damage(row(V2P, 8, 2), "v2p[8] is 2, p2v there is -1", (8,)),
    "v2p to the gap": Damage(row(V2P, 8, 16), "v2p[8] is 16, p2v there is -1", (8,)),
    "v2p of a free id": Damage(row(V2P, 2, 2), "v2p[2] is 2, p2v there is -1"),
    "v2p of a fresh id": Damage(row(V2P, 20, 16), "v2p[20] is 16, p2v there is -1"),
    "p2v duplicate": Damage(row(P2V, 8, 5), "p2v[8] is 5, v2p there is 5", (5, 8)),
    "p2v unbound": Damage(row(P2V, 8, -1), "v2p[8] is 8, p2v there is -1", (8,)),
    "p2v zero": Damage(row(P2V, 8, 0), "p2v[8] is 0", (8,)),
    "p2v negative": Damage(row(P2V, 8, -5), "p2v[8] is -5", (8,)),
    "p2v past the end": Damage(row(P2V, 8, 40), "p2v[8] is 40, v2p there is out of range", (8,)),
    "p2v huge": Damage(row(P2V, 8, 2**62), f"p2v[8] is {2**62}", (8,)),
    "p2v lowest": Damage(row(P2V, 8, -(2**63)), f"p2v[8] is {-(2**63)}", (8,)),
    "p2v of a hole": Damage(row(P2V, 2, 2), "p2v[2] is 2, v2p there is -1"),
    "p2v in the gap": Damage(row(P2V, 16, 7), "p2v[16] is 7, v2p there is 7", (7,)),
    "v2p sink row": Damage(row(V2P, 0, 6), "the sink rows are v2p[0]=6 and p2v[0]=0"),
    "p2v sink row": Damage(row(P2V, 0, -1), "the sink rows are v2p[0]=0 and p2v[0]=-1"),
    "duplicate hole": Damage(entry("holes", 0, 9), "9 is twice in the hole list"),
    "live page in the hole list": Damage(
        entry("holes", 0, 7), "page 7 is in the hole list but bound to id 7"
    ),
    "hole out of range": Damage(
        entry("holes", 0, 16), "page 16 is in the hole list but outside the band"
    ),
    "huge hole": Damage(entry("holes", 0, 2**62), f"page {2**62} is in the hole list but outside"),
    "sink in the hole list": Damage(entry("holes", 0, 0), "0 is in the hole list"),
    "negative hole": Damage(entry("holes", 0, -1), "-1 is in the hole list"),
    "live id in the free ids": Damage(entry("ids", 0, 5), "id 5 is live but in the free id list"),
    "duplicate free id": Damage(entry("ids", 0, 9), "9 is twice in the free id list"),
    "fresh id in the free ids": Damage(
        entry("ids", 0, 20), "id 20 is in the free id list but was never handed out"
    ),
    "negative free id": Damage(entry("ids", 0, -1), "-1 is in the free id list"),
    "live counter": Damage(
        drift("live", 1), "the live counter says {live_up}, the tables say {live}"
    ),
    "live counter low": Damage(
        drift("live", -2), "the live counter says {live_down}, the tables say {live}"
    ),
    "span counter": Damage(drift("span", 2), "a span of {span_up} pages is not {live} live"),
    "span counter low": Damage(drift("span", -3), "a span of {span_down} pages is not {live} live"),
    "lost hole": Damage(list_length("holes", -1), "is free but in no list"),
    "lost id": Damage(list_length("ids", -1), "is neither live nor in the free id list"),
}


def guarded(rig: Rig) -> list[torch.Tensor]:
    """Put every table into larger memory; returns that memory, first and last word the guards."""
    memory = []
    for pool in rig.arena.pools.values():
        table, backend = pool._band.table, rig.arena._shared.backend
        for name, short in ((V2P, "v2p"), (P2V, "p2v")):
            rows = getattr(table, name)
            memory.append(torch.full((rows.numel() + 2,), GUARD_WORD))
            memory[-1][1:-1] = rows
            setattr(table, name, memory[-1][1:-1])
            setattr(table, short, backend.operand(memory[-1][1:-1]))
    return memory


def guards_intact(memory: list[torch.Tensor]) -> bool:
    return all(int(words[0]) == int(words[-1]) == GUARD_WORD for words in memory)


class DamagedRig(Rig):
    """Pool "A", alone or beside "B", with holes, a page that moved and, if asked for, hazards.

    ``pending``: page 12 was vacated under a forward that still runs. ``leased``: page 11 is leased
    and freed, so that it is pending as well.
    """

    def __init__(self, backend: str, pools: int, pending: bool = False, leased: bool = False):
        specs = [PoolSpec("A", 8), PoolSpec("B", 8, grows="down")][:pools]
        super().__init__(backend, *specs, total_bytes=8 * (25 if pools == 1 else 36))
        self.tables = guarded(self)
        self.fence = ManualFence()
        self.alloc(12, "A")
        if pools == 2:
            self.alloc(6, "B")
            self.free([2], "B")
        self.free([3], "A")
        if pending:
            self.arena.forward_launched(self.fence)
        self.flush("A")
        self.free([2, 9], "A")
        self.lease = None
        if leased:
            self.lease = self.pool.lease([11])
            self.free([11], "A")

    def verify(self) -> None:
        super().verify()
        assert guards_intact(self.tables)

    def numbers(self) -> dict[str, int]:
        """What findings name."""
        live, span = self.pool.live_pages, self.span("A")
        return {
            "live": live, "live_up": live + 1, "live_down": live - 2,
            "span": span, "span_up": span + 2, "span_down": span - 3,
        }  # fmt: skip

    def homes(self) -> dict[str, dict[int, int]]:
        """Where every live id is."""
        return {
            name: dict(zip(live, self.pages(live, name), strict=True))
            for name, live in self.live.items()
        }

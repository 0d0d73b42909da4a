"""Two arenas in lockstep: Triton on the device under test, the host twins on the CPU.

A seeded random script runs on both. Every id, table, byte, result and error must be the same.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch

from kvdefrag import AllocatorError, Arena, PoolSpec
from kvdefrag.allocator.testing import stamp_pages

from .gpu_check_machine import finish
from .gpu_check_report import Wrong, require
from .gpu_check_sizes import PoolShape

DTYPES = (torch.int64, torch.int32)

DEEP_CHECK_EVERY = 25

Geometry = tuple[int, PoolShape, PoolShape]


class Lockstep:
    """The same arena twice. ``live``: the bound ids of every pool."""

    def __init__(self, device: torch.device, geometry: Geometry, seed: int) -> None:
        total_bytes, up, down = geometry
        specs = [PoolSpec(*up, grows="up"), PoolSpec(*down, grows="down")]
        generator = torch.Generator().manual_seed(seed)
        fill = torch.randint(0, 256, (total_bytes,), dtype=torch.uint8, generator=generator)
        self.arenas = [
            Arena(total_bytes, specs, backend="triton", buffer=fill.to(device, copy=True)),
            Arena(total_bytes, specs, backend="host", buffer=fill.clone()),
        ]
        self.draw = random.Random(seed)
        self.names = [spec.name for spec in specs]
        self.live: dict[str, list[int]] = {name: [] for name in self.names}
        self.step = 0

    def both(self, what: str, call: Callable[[Arena], Any]) -> Any:
        """The outcome of ``call``, which both arenas must agree on: ("gave" or "raised", ...)."""
        on_device, on_host = (_outcome(call, arena) for arena in self.arenas)
        if on_device != on_host:
            raise Wrong(f"step {self.step}, {what}: {_first(on_device, on_host)}")
        return on_host

    def require_same_state(self, what: str) -> None:
        """Tables, bytes, counts and statistics."""
        ours, twin = self.arenas
        for name in self.names:
            for table in ("virtual_to_physical", "physical_to_virtual"):
                _require_equal(
                    f"step {self.step}, {what}: {table} of {name!r}",
                    getattr(ours[name], table).cpu(),
                    getattr(twin[name], table),
                )
        assert ours.buffer is not None
        assert twin.buffer is not None
        _require_equal(f"step {self.step}, {what}: byte", ours.buffer.cpu(), twin.buffer)
        self.both(f"{what}, statistics", _statistics)

    def random_step(self, actions: Sequence[Action]) -> None:
        """One call, its outcome and the state after it."""
        self.step += 1
        name = self.draw.choice(self.names)
        action = self.draw.choice(actions)
        action(self, name)
        self.require_same_state(action.__name__)
        if self.step % DEEP_CHECK_EVERY == 0:
            self.both("deep check", lambda arena: arena.check(deep=True))

    def got(self, name: str, ids: Sequence[int]) -> None:
        """Note ids that were handed out, and write their marks."""
        self.live[name] += ids
        if ids:
            for arena in self.arenas:
                stamp_pages(arena[name], torch.tensor(ids, device=arena.device), self.step)

    def some_live(self, name: str) -> list[int]:
        """A random choice of live ids, none included."""
        return self.draw.sample(self.live[name], self.draw.randint(0, len(self.live[name])))

    def form(self) -> tuple[torch.dtype, int]:
        """Dtype and stride of ids to pass."""
        return self.draw.choice(DTYPES), self.draw.choice((1, 2, 3))


def _alloc(pair: Lockstep, name: str) -> None:
    room = pair.arenas[1][name].available()
    count = pair.draw.choice((0, 1, room + 1, room, pair.draw.randint(0, room // 2 + 1)))
    said, ids = pair.both(f"alloc({count})", lambda arena: arena[name].alloc(count))
    if said == "gave":
        pair.got(name, ids)


def _alloc_many(pair: Lockstep, name: str) -> None:
    room = pair.arenas[1][name].available()
    asked = {other: pair.draw.randint(0, room // 3 + 1) for other in pair.names}
    said, ids = pair.both(f"alloc_many({asked})", lambda arena: arena.alloc_many(asked))
    if said == "gave":
        for other in pair.names:
            pair.got(other, ids[other])


def _free(pair: Lockstep, name: str) -> None:
    gone, form = pair.some_live(name), pair.form()
    pair.both(f"free({len(gone)} ids)", lambda arena: arena[name].free(place(arena, gone, *form)))
    pair.live[name] = [virtual for virtual in pair.live[name] if virtual not in set(gone)]


def _free_a_wrong_id(pair: Lockstep, name: str) -> None:
    """One id among good ones is refused on the device; the lists are rebuilt at the next look."""
    ids, form = pair.some_live(name), pair.form()
    pages = pair.arenas[1][name].num_pages
    unbound = set(range(1, pages)) - set(pair.live[name])
    wrong = pair.draw.choice((0, -1, pages + 7, min(unbound, default=-5)))
    ids.insert(pair.draw.randint(0, len(ids)), wrong)
    pair.both(f"free({wrong})", lambda arena: arena[name].free(place(arena, ids, *form)))
    pair.both("alloc before the look", lambda arena: arena[name].alloc(2))
    pair.both("check", lambda arena: arena.check())
    for other in pair.names:
        table = pair.arenas[1][other].virtual_to_physical
        pair.live[other] = (1 + (table[1:] > 0).nonzero().flatten()).tolist()


def _flush(pair: Lockstep, name: str) -> None:
    limits: dict[str, Any] = pair.draw.choice(
        (
            {"urgent": True},
            {},
            {"max_moves": pair.draw.randint(0, 5)},
            {"max_bytes": pair.draw.randint(0, 6 * pair.arenas[1][name].page_bytes)},
            {"max_moves": 3, "max_bytes": 1 << 14},
        )
    )
    if pair.draw.random() < 0.5:
        pair.both(f"flush({limits})", lambda arena: arena[name].flush(**limits))
    else:
        pair.both(f"arena flush({limits})", lambda arena: arena.flush(**limits))


def _translate(pair: Lockstep, name: str) -> None:
    form = pair.form()
    ids = [*pair.some_live(name), -1, 0, 2**30, pair.draw.randint(1, 60)]
    pair.both("translate", lambda arena: arena[name].translate(place(arena, ids, *form)))


def _translate_tokens(pair: Lockstep, name: str) -> None:
    form, out_dtype = pair.form(), pair.draw.choice((None, *DTYPES))
    page_size = pair.arenas[1][name].page_size
    tokens = [v * page_size + pair.draw.randrange(page_size) for v in pair.some_live(name)]
    tokens += [-1, 0, 2**30]

    def call(arena: Arena) -> torch.Tensor:
        out = None
        if out_dtype is not None:
            out = torch.full((len(tokens),), 77, dtype=out_dtype, device=arena.device)
        return arena[name].translate_tokens(place(arena, tokens, *form), out=out)

    pair.both("translate_tokens", call)


Action = Callable[[Lockstep, str], None]

ACTIONS: tuple[Action, ...] = (
    _alloc, _alloc, _alloc, _alloc_many, _free, _free, _free, _free_a_wrong_id, _flush, _flush,
    _translate, _translate_tokens,
)  # fmt: skip


def place(arena: Arena, ids: Sequence[int], dtype: torch.dtype, stride: int = 1) -> torch.Tensor:
    """``ids`` on the arena's device, ``stride`` apart, with garbage between them."""
    whole = torch.full((len(ids) * stride,), -9, dtype=dtype)
    whole[::stride] = torch.tensor(ids, dtype=dtype)
    return whole.to(arena.device)[::stride]


def require_alive(pair: Lockstep, name: str) -> None:
    """The device still works, and the next allocation too."""
    finish(pair.arenas[0].device)
    said, ids = pair.both("alloc afterwards", lambda arena: arena[name].alloc(3))
    require(said == "gave" and len(set(ids)) == 3, f"alloc afterwards {said} {ids}")
    pair.both("deep check afterwards", lambda arena: arena.check(deep=True))
    pair.require_same_state("afterwards")


def _statistics(arena: Arena) -> Any:
    return dataclasses.asdict(dataclasses.replace(arena.stats(), flush_host_ns=0))


def _outcome(call: Callable[[Arena], Any], arena: Arena) -> tuple[str, Any]:
    try:
        return "gave", _plain(call(arena))
    except AllocatorError as error:
        return "raised", f"{type(error).__name__}: {error}"


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.cpu().tolist()
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _first(on_device: Any, on_host: Any) -> str:
    """The first difference of two outcomes, in words."""
    if isinstance(on_device[1], list) and isinstance(on_host[1], list):
        for index, (ours, twin) in enumerate(zip(on_device[1], on_host[1], strict=False)):
            if ours != twin:
                return f"element {index} is {ours} on the device, {twin} on the host"
    return f"the device {on_device}, the host {on_host}"


def _require_equal(what: str, ours: torch.Tensor, twin: torch.Tensor) -> None:
    if not torch.equal(ours, twin):
        at = int((ours != twin).nonzero()[0])
        raise Wrong(f"{what} {at} is {int(ours[at])} on the device, {int(twin[at])} on the host")

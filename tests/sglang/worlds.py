"""Two pools side by side over real CPU memory: one run by SGLang alone, one with the plugin."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from sglang.srt.mem_cache.allocator.unified_sub_pool import MultiEndedAllocator
from sglang.test.unified_allocator_fixtures import build_swa_pool, build_tri_pool

from kvdefrag.allocator.sglang_plugin import HOOKS

WITH_PLUGIN = {name: vars(MultiEndedAllocator)[name] for name in HOOKS}
STOCK = {name: hooked.__wrapped__ for name, hooked in WITH_PLUGIN.items()}

LAYOUTS = ("two pools", "three pools")
COMPARED = (
    "virtual_to_physical", "physical_to_virtual", "watermark_physical", "low_wm_page",
    "high_wm_page", "_free_phys_pages", "free_virtual_ids", "live_page_count", "_inverse_history",
    "_pending_reuse_pages_cpu", "_pending_hicache_load_pages", "_holes_dirty",
)  # fmt: skip


@contextmanager
def running(methods: dict[str, Callable[..., Any]]) -> Iterator[None]:
    """SGLang's class with these methods."""
    with patch.multiple(MultiEndedAllocator, **methods):
        yield


class Event:
    """The end of a forward. ``land`` is what the forward does, ``done`` what the host sees of it.

    ``number``: the same in both worlds.
    """

    def __init__(self, number: int, land: Callable[[], None] = lambda: None) -> None:
        self.number = number
        self.done = False
        self._land = land

    def query(self) -> bool:
        return self.done

    def land(self) -> None:
        land, self._land = self._land, lambda: None
        land()

    def fire(self) -> None:
        self.land()
        self.done = True


class Stream:
    """The current stream: work that waits for an event runs after what the event stands for."""

    def __init__(self) -> None:
        self.waits: list[int] = []

    def wait_event(self, event: Event) -> None:
        self.waits.append(event.number)
        event.land()


class World:
    """One composite allocator of SGLang's with its pools' bytes."""

    def __init__(self, layout: str, page_size: int, methods: dict[str, Callable[..., Any]]) -> None:
        self.methods = methods
        if layout == "two pools":
            self.composite = build_swa_pool(page_size=page_size)
        else:
            self.bundle, self.composite = build_tri_pool(page_size=page_size)
        names = ("full_attn_allocator", "swa_attn_allocator", "mamba_allocator")
        found = {name: getattr(self.composite, name, None) for name in names}
        self.members = {name: member for name, member in found.items() if member is not None}
        self.ends = {
            name: member for name, member in self.members.items() if member.lazy_compaction
        }
        self.bytes: torch.Tensor = self.composite.unified_buffer._raw
        self.gate_open = True
        for member in self.ends.values():
            member.disagg_move_gate = lambda: self.gate_open
        self.stream = Stream()
        self.events: dict[int, Event] = {}

    def run(self, call: Callable[["World"], Any]) -> Any:
        with running(self.methods), patch.object(torch.cuda, "current_stream", lambda: self.stream):
            return call(self)

    def envelope(self, name: str, page: int) -> torch.Tensor:
        page_bytes = self.members[name].entry_bytes_per_page
        return self.bytes[page * page_bytes : (page + 1) * page_bytes]

    def write(self, name: str, pages: list[int], seed: int) -> None:
        """Random bytes into physical pages; the sink takes none."""
        generator = torch.Generator().manual_seed(seed)
        for page in pages:
            envelope = self.envelope(name, page)
            stamp = torch.randint(256, envelope.shape, dtype=torch.uint8, generator=generator)
            if page > 0:
                envelope.copy_(stamp)

    def physical(self, name: str, pages: list[int]) -> list[int]:
        return self.members[name].virtual_to_physical[pages].tolist()

    def state(self) -> dict[str, Any]:
        """Everything that the two worlds must agree in."""
        found: dict[str, Any] = {"bytes": self.bytes, "waits": list(self.stream.waits)}
        for name, member in self.members.items():
            kept = vars(member)
            counters = [key for key in kept if key.startswith("_stats_") and "_ts" not in key]
            found |= {f"{name}.{key}": kept.get(key) for key in (*COMPARED, *counters)}
            inflight = kept["_inflight_forward"]
            found[f"{name}.inflight"] = None if inflight is None else inflight[0].number
            found[f"{name}.pending"] = [
                (event.number, *lists) for event, lists in kept["_pending_reuse"].items()
            ]
            found[f"{name}.available"] = member.available_size()
            found[f"{name}.schedulable"] = member.schedulable_available_size()
        found["available"] = self.composite.available_size()
        return found


def differences(left: Any, right: Any, path: str = "") -> list[str]:
    """Where two nests of tensors, sequences and plain values differ."""
    if type(left) is not type(right):
        return [f"{path}: {left!r} and {right!r}"]
    if isinstance(left, torch.Tensor):
        same = left.dtype == right.dtype and torch.equal(left, right)
        return [] if same else [f"{path}: {left} and {right}"]
    if isinstance(left, dict):
        assert left.keys() == right.keys()
        return [
            line for key in left for line in differences(left[key], right[key], f"{path} {key}")
        ]
    if isinstance(left, list | tuple):
        if len(left) != len(right):
            return [f"{path}: {left!r} and {right!r}"]
        pairs = enumerate(zip(left, right, strict=True))
        return [line for at, (a, b) in pairs for line in differences(a, b, f"{path}[{at}]")]
    return [] if left == right else [f"{path}: {left!r} and {right!r}"]


class Pair:
    """The same calls in both worlds, compared after every one."""

    def __init__(self, layout: str, page_size: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.stock = World(layout, page_size, STOCK)
            self.plugged = World(layout, page_size, WITH_PLUGIN)

    def __call__(self, call: Callable[[World], Any]) -> Any:
        """What ``call`` gave in both worlds; AssertionError if they differ in any way."""
        expected = self.stock.run(call)
        got = self.plugged.run(call)
        assert differences(expected, got, "result") == []
        assert differences(self.stock.state(), self.plugged.state(), "state") == []
        for world in (self.stock, self.plugged):
            if hasattr(world.composite, "verify_byte_accounting"):
                assert world.composite.verify_byte_accounting() == []
        return expected

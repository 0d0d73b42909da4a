"""Random scripts of calls for a pair of worlds."""

from collections.abc import Callable
from random import Random
from typing import Any

import torch

from .worlds import Event, Pair, World

STEPS = 50


class Script:
    """One random script: a server's calls, with weights that differ from script to script.

    A page that a forward in flight writes is not freed: there the plugin differs on purpose.
    """

    def __init__(self, pair: Pair, page_size: int, seed: int) -> None:
        self.pair = pair
        self.page_size = page_size
        self.random = Random(seed)
        self.pages: list[int] = []
        self.slots: list[int] = []
        self.written: dict[int, set[int]] = {}
        self.moves = 0
        self.steps: list[Callable[[], Any]] = [
            self.alloc, self.free, self.free_window, self.take_slots, self.free_slots,
            self.flush_all, self.flush_idle, self.flush_idle, self.flush_urgent, self.launch,
            self.launch, self.fire, self.gate, self.cap, self.transfer, self.reserve, self.clear,
        ]  # fmt: skip
        self.weights = [self.random.choice((0, 1, 1, 2, 4)) for _ in self.steps]
        self.weights[0] = self.weights[1] = 4
        self.weights[-1] = 0.1

    def run(self) -> int:
        """Run it; returns how many pages were moved."""
        self.fill()
        for _ in range(STEPS):
            self.random.choices(self.steps, self.weights)[0]()
            if self.random.random() < 0.3:
                self.turn_gate(True)
        self.flush_urgent()
        return self.moves

    def fill(self) -> None:
        """Start crowded, so that flushes find something and allocations run short."""
        for _ in range(6):
            self.take_slots()
        for share in (2, 3):
            self.take(self.pair.stock.composite.available_size() // self.page_size // share)

    def take(self, count: int) -> None:
        tokens = self.pair(lambda world: world.composite.alloc(count * self.page_size))
        if tokens is not None and tokens.numel():
            pages = tokens[:: self.page_size].div(self.page_size, rounding_mode="floor").tolist()
            self.pages += pages
            self.stamp(("full_attn_allocator", "swa_attn_allocator"), pages)

    def alloc(self) -> None:
        self.take(self.random.choice((1, 1, 2, 5, 17, 40)))

    def stamp(self, names: tuple[str, ...], pages: list[int]) -> None:
        seed = self.random.getrandbits(32)

        def write(world: World) -> None:
            for name in names:
                world.write(name, world.physical(name, pages), seed)

        self.pair(write)

    def some(self, pool: list[int]) -> list[int]:
        count = min(len(pool), self.random.choice((1, 1, 2, 6, 20, 50)))
        return self.random.sample(pool, count)

    def free_pages(self) -> list[int]:
        written = set().union(*self.written.values())
        return self.some([page for page in self.pages if page not in written])

    def tokens(self, pages: list[int]) -> torch.Tensor:
        first = torch.tensor(pages, dtype=torch.int64)[:, None] * self.page_size
        return (first + torch.arange(self.page_size)).reshape(-1)

    def free(self) -> None:
        pages = self.free_pages()
        self.pages = [page for page in self.pages if page not in pages]
        self.pair(lambda world: world.composite.free(self.tokens(pages)))

    def free_window(self) -> None:
        pages = self.free_pages()
        self.pair(lambda world: world.composite.free_swa(self.tokens(pages)))

    def take_slots(self) -> None:
        if "mamba_allocator" in self.pair.stock.members:
            count = self.random.choice((1, 2, 3))
            slots = self.pair(lambda world: world.members["mamba_allocator"].alloc(count))
            if slots is not None:
                self.slots += slots.tolist()
                self.stamp(("mamba_allocator",), slots.tolist())

    def free_slots(self) -> None:
        if self.slots:
            slots = self.random.sample(self.slots, -(-len(self.slots) // 3))
            self.slots = [slot for slot in self.slots if slot not in slots]
            self.pair(lambda world: world.members["mamba_allocator"].free(torch.tensor(slots)))

    def flush_all(self) -> None:
        self.moves += self.pair(lambda world: world.composite.flush_opportunistic())

    def end(self) -> str:
        return self.random.choice(sorted(self.pair.stock.ends))

    def flush_idle(self) -> None:
        name = self.end()
        self.moves += self.pair(lambda world: world.ends[name]._flush(urgent=False))

    def flush_urgent(self) -> None:
        name = self.end()
        self.moves += self.pair(lambda world: world.ends[name].flush_for_allocation())

    def launch(self) -> None:
        """A forward: it writes into its pages, wherever they were when it was launched."""
        number = len(self.pair.stock.events)
        pages = self.some(self.pages) if self.random.random() < 0.8 else []
        seed = self.random.getrandbits(32)
        offset = self.random.randrange(self.page_size)
        self.written = {number: set(pages)}

        def forward(world: World) -> None:
            names = ("full_attn_allocator", "swa_attn_allocator")
            places = {name: world.physical(name, pages) for name in names}

            def land() -> None:
                for name, physical in places.items():
                    world.write(name, physical, seed)

            event = world.events[number] = Event(number, land)
            world.composite.set_latest_forward_done_event(event)
            out = torch.tensor(pages, dtype=torch.int64) * self.page_size + offset
            world.composite.set_inflight_forward(event, out)

        self.pair(forward)

    def fire(self) -> None:
        """The host hears of all forwards, or of all but the last."""
        heard = len(self.pair.stock.events) - self.random.choice((0, 0, 1))

        def fire(world: World) -> None:
            for number in range(heard):
                world.events[number].fire()

        self.pair(fire)
        self.written = {at: pages for at, pages in self.written.items() if at >= heard}

    def gate(self) -> None:
        self.turn_gate(False)
        self.flush_idle()
        self.flush_urgent()

    def turn_gate(self, is_open: bool) -> None:
        def turn(world: World) -> None:
            world.gate_open = is_open

        self.pair(turn)

    def cap(self) -> None:
        cap = self.random.choice((0, 1, 2, 3, 8, 4096))

        def limit(world: World) -> None:
            for member in world.ends.values():
                member._lazy_max_moves_per_call = cap

        self.pair(limit)

    def transfer(self) -> None:
        name, number = self.end(), len(self.pair.stock.events)

        def copy(world: World) -> None:
            event = world.events[number] = Event(number)
            world.ends[name].set_hicache_transfer_done_event("backup", event)

        self.pair(copy)

    def reserve(self) -> None:
        """A load from the host holds physical pages; nothing moves until they are given back."""
        name = self.end()
        size = self.pair.stock.ends[name].page_size
        tokens = self.pair(lambda world: world.ends[name].alloc_physical(size))
        self.flush_idle()
        self.flush_urgent()
        if tokens is not None:
            self.pair(lambda world: world.ends[name].cancel_physical_reservation(tokens))

    def clear(self) -> None:
        self.pages, self.slots, self.written = [], [], {}
        self.pair(lambda world: world.composite.clear())

"""What fits, written down a second time: the pools packed in their order, on their own grids."""

from collections.abc import Mapping
from typing import NamedTuple

from hypothesis import strategies as st

from kvdefrag import PoolSpec


class Layout(NamedTuple):
    """A buffer and its pools, in any order."""

    total_bytes: int
    specs: tuple[PoolSpec, ...]

    @property
    def sink_bytes(self) -> int:
        return max(spec.page_bytes for spec in self.specs)

    def ids(self, spec: PoolSpec) -> int:
        return spec.virtual_pages or self.total_bytes // spec.page_bytes - 1

    @property
    def chain(self) -> list[PoolSpec]:
        """The pools in the order of the buffer."""
        return sorted(self.specs, key=lambda spec: ("up", "float", "down").index(spec.grows))

    def edges(self, name: str, counts: Mapping[str, int]) -> tuple[int, int]:
        """What ``counts``, pages by pool name, leave ``name``, the others packed away from it."""
        names = [spec.name for spec in self.chain]
        place = names.index(name)
        low, high = self.sink_bytes, self.total_bytes
        for spec in self.chain[:place]:
            if counts.get(spec.name):
                low = (ceil(low, spec.page_bytes) + counts[spec.name]) * spec.page_bytes
        for spec in reversed(self.chain[place + 1 :]):
            if counts.get(spec.name):
                high = (high // spec.page_bytes - counts[spec.name]) * spec.page_bytes
        return low, high

    def frontiers(self, spans: Mapping[str, int]) -> tuple[int, int]:
        """Where the two pools at the ends of the buffer face each other."""
        low, high = self.sink_bytes, self.total_bytes
        for spec in self.specs:
            if spans[spec.name] and spec.grows == "up":
                low = (ceil(low, spec.page_bytes) + spans[spec.name]) * spec.page_bytes
            elif spans[spec.name]:
                high = (high // spec.page_bytes - spans[spec.name]) * spec.page_bytes
        return low, high

    def available(self, name: str, live: Mapping[str, int]) -> int:
        spec = next(spec for spec in self.specs if spec.name == name)
        low, high = self.edges(name, live)
        room = high // spec.page_bytes - ceil(low, spec.page_bytes) - live[name]
        return max(0, min(self.ids(spec) - live[name], room))

    def fits(self, live: Mapping[str, int], asked: Mapping[str, int]) -> bool:
        counts = {name: count + asked.get(name, 0) for name, count in live.items()}
        low = self.sink_bytes
        for spec in self.chain:
            if counts[spec.name] > self.ids(spec):
                return False
            if counts[spec.name] and spec.grows != "down":
                low = (ceil(low, spec.page_bytes) + counts[spec.name]) * spec.page_bytes
            elif counts[spec.name]:
                start = self.total_bytes // spec.page_bytes - counts[spec.name]
                return low <= start * spec.page_bytes
        return low <= self.total_bytes


def ceil(dividend: int, divisor: int) -> int:
    return (dividend + divisor - 1) // divisor


@st.composite
def layouts(draw: st.DrawFn, most_pages: int = 40, floats: bool = False) -> Layout:
    """One pool or two, or a chain with ``floats``, in any order; odd sizes, sometimes few ids."""
    ends = st.sampled_from([("up",), ("down",), ("up", "down"), ("down", "up")])
    if floats:
        chains = [("float",), ("up", "float"), ("float", "down"), ("float", "down", "float", "up")]
        ends = st.sampled_from(chains) | st.permutations(["up", "float", "down"]).map(tuple)
    specs = tuple(
        PoolSpec(
            name,
            page_bytes=draw(st.integers(1, 24)),
            page_size=draw(st.integers(1, 5)),
            grows=grows,
            virtual_pages=draw(st.none() | st.integers(most_pages // 4, most_pages)),
        )
        for name, grows in zip(("first", "second", "third", "fourth"), draw(ends), strict=False)
    )
    sizes = [spec.page_bytes for spec in specs]
    most_bytes = most_pages * (min(sizes) + max(sizes)) // 2
    return Layout(draw(st.integers(most_bytes // 2 + 2 * max(sizes), most_bytes)), specs)

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

    def edges(self, counts: Mapping[str, int]) -> tuple[int, int]:
        """Where ``counts``, pages by pool name, end when packed: from below and from above."""
        low, high = self.sink_bytes, self.total_bytes
        for spec in self.specs:
            count = counts.get(spec.name, 0)
            if count and spec.grows == "up":
                low = (ceil(low, spec.page_bytes) + count) * spec.page_bytes
            elif count:
                high = (high // spec.page_bytes - count) * spec.page_bytes
        return low, high

    def available(self, name: str, live: Mapping[str, int]) -> int:
        spec = next(spec for spec in self.specs if spec.name == name)
        low, high = self.edges({other: count for other, count in live.items() if other != name})
        room = high // spec.page_bytes - ceil(low, spec.page_bytes) - live[name]
        return max(0, min(self.ids(spec) - live[name], room))

    def fits(self, live: Mapping[str, int], asked: Mapping[str, int]) -> bool:
        counts = {name: count + asked.get(name, 0) for name, count in live.items()}
        low, high = self.edges(counts)
        return low <= high and all(counts[spec.name] <= self.ids(spec) for spec in self.specs)


def ceil(dividend: int, divisor: int) -> int:
    return (dividend + divisor - 1) // divisor


@st.composite
def layouts(draw: st.DrawFn, most_pages: int = 40) -> Layout:
    """One pool, or two in either order; odd page sizes, odd totals, sometimes few ids."""
    ends = draw(st.sampled_from([("up",), ("down",), ("up", "down"), ("down", "up")]))
    specs = tuple(
        PoolSpec(
            name,
            page_bytes=draw(st.integers(1, 24)),
            page_size=draw(st.integers(1, 5)),
            grows=grows,
            virtual_pages=draw(st.none() | st.integers(most_pages // 4, most_pages)),
        )
        for name, grows in zip(("first", "second"), ends, strict=False)
    )
    sizes = [spec.page_bytes for spec in specs]
    most_bytes = most_pages * (min(sizes) + max(sizes)) // 2
    return Layout(draw(st.integers(most_bytes // 2 + 2 * max(sizes), most_bytes)), specs)

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

    def spec(self, name: str) -> PoolSpec:
        return next(spec for spec in self.specs if spec.name == name)

    @property
    def owners(self) -> list[str]:
        """The pools that have ids of their own."""
        return [spec.name for spec in self.specs if spec.ids_from is None]

    @property
    def borrowers(self) -> list[str]:
        return [spec.name for spec in self.specs if spec.ids_from is not None]

    def borrowers_of(self, name: str) -> list[str]:
        return [spec.name for spec in self.specs if spec.ids_from == name]

    def ids(self, spec: PoolSpec) -> int:
        """How many there are, in the pool that has them."""
        owner = self.spec(spec.ids_from) if spec.ids_from else spec
        return owner.virtual_pages or self.total_bytes // owner.page_bytes - 1

    def ids_left(self, name: str, live: Mapping[str, int], asked: Mapping[str, int]) -> int:
        """Ids without a page in `name`; borrowed ones, if they are live where they come from."""
        spec = self.spec(name)
        if spec.ids_from is None:
            return self.ids(spec) - live[name]
        return live[spec.ids_from] + asked.get(spec.ids_from, 0) - live[name]

    @property
    def chain(self) -> list[PoolSpec]:
        """The pools in the order of the buffer."""
        return sorted(self.specs, key=lambda spec: ("up", "float", "down").index(spec.grows))

    def edges(
        self,
        name: str,
        counts: Mapping[str, int],
        fixed: Mapping[str, tuple[int, int]] | None = None,
    ) -> tuple[int, int]:
        """What `counts`, pages by pool name, leave `name`, the others packed away from it.

        Those in `fixed` stay between these bytes, and take only what is more on the far side first.
        """
        names = [spec.name for spec in self.chain]
        place, fixed = names.index(name), fixed or {}
        low, high = self.sink_bytes, self.total_bytes
        for spec in self.chain[:place]:
            pages = counts.get(spec.name, 0)
            if spec.name in fixed:
                start, end = fixed[spec.name]
                more = pages - (end - start) // spec.page_bytes
                beyond = more - max(0, start // spec.page_bytes - ceil(low, spec.page_bytes))
                low = end + max(0, min(more, beyond)) * spec.page_bytes
            elif pages:
                low = (ceil(low, spec.page_bytes) + pages) * spec.page_bytes
        for spec in reversed(self.chain[place + 1 :]):
            pages = counts.get(spec.name, 0)
            if spec.name in fixed:
                start, end = fixed[spec.name]
                more = pages - (end - start) // spec.page_bytes
                beyond = more - max(0, high // spec.page_bytes - end // spec.page_bytes)
                high = start - max(0, min(more, beyond)) * spec.page_bytes
            elif pages:
                high = (high // spec.page_bytes - pages) * spec.page_bytes
        return low, high

    def available(self, name: str, live: Mapping[str, int]) -> int:
        spec = self.spec(name)
        low, high = self.edges(name, live)
        room = high // spec.page_bytes - ceil(low, spec.page_bytes) - live[name]
        return max(0, min(self.ids_left(name, live, {}), room))

    def fits(self, live: Mapping[str, int], asked: Mapping[str, int]) -> bool:
        counts = {name: count + asked.get(name, 0) for name, count in live.items()}
        low = self.sink_bytes
        for spec in self.chain:
            if asked.get(spec.name, 0) > self.ids_left(spec.name, live, asked):
                return False
            if counts[spec.name] and spec.grows != "down":
                low = (ceil(low, spec.page_bytes) + counts[spec.name]) * spec.page_bytes
            elif counts[spec.name]:
                start = self.total_bytes // spec.page_bytes - counts[spec.name]
                return low <= start * spec.page_bytes
        return low <= self.total_bytes


def ceil(dividend: int, divisor: int) -> int:
    return (dividend + divisor - 1) // divisor


NAMES = ("first", "second", "third", "fourth")
TWO = st.sampled_from([("up", "down"), ("down", "up"), ("float", "down"), ("up", "float")])
THREE = st.permutations(["up", "float", "down"]).map(tuple)
FOUR = st.permutations(["up", "float", "float", "down"]).map(tuple)


@st.composite
def layouts(
    draw: st.DrawFn, most_pages: int = 40, floats: bool = False, borrowing: bool = False
) -> Layout:
    """One pool or two, or a chain with `floats`, in any order; odd sizes, sometimes few ids.

    With `borrowing` 2 to 4 pools, one at least with the ids of another; some zero their pages.
    """
    ends = st.sampled_from([("up",), ("down",), ("up", "down"), ("down", "up")])
    if floats:
        chains = [("float",), ("up", "float"), ("float", "down"), ("float", "down", "float", "up")]
        ends = st.sampled_from(chains) | THREE
    grows = draw(TWO | THREE | FOUR if borrowing else ends)
    lender, *others = draw(st.permutations(range(len(grows)))) if borrowing else (0,)
    borrows = set(others[:1]) | {each for each in others[1:] if draw(st.booleans())}
    specs = tuple(
        PoolSpec(
            name,
            page_bytes=draw(st.integers(1, 24)),
            page_size=draw(st.integers(1, 5)),
            grows=grows[place],
            virtual_pages=None
            if place in borrows
            else draw(st.none() | st.integers(most_pages // 4, most_pages)),
            zero_on_alloc=borrowing and draw(st.sampled_from([False, False, True])),
            ids_from=NAMES[lender] if place in borrows else None,
        )
        for place, name in enumerate(NAMES[: len(grows)])
    )
    sizes = [spec.page_bytes for spec in specs]
    most_bytes = most_pages * (min(sizes) + max(sizes)) // 2
    return Layout(draw(st.integers(most_bytes // 2 + 2 * max(sizes), most_bytes)), specs)

"""Chains of 2, 3 and 4 pools in which some borrow the ids of another, in every direction."""

from kvdefrag import PoolSpec

from .formula import Layout


def _layout(total_bytes: int, *specs: PoolSpec) -> Layout:
    return Layout(total_bytes, specs)


CHAINS = {
    "borrower above": _layout(
        405,
        PoolSpec("first", 8, page_size=3),
        PoolSpec("second", 5, page_size=2, grows="down", ids_from="first"),
    ),
    "borrower below": _layout(
        430,
        PoolSpec("first", 11, zero_on_alloc=True, ids_from="second"),
        PoolSpec("second", 3, page_size=4, grows="down", virtual_pages=40),
    ),
    "float beside an own pool": _layout(
        620,
        PoolSpec("first", 8, page_size=4),
        PoolSpec("second", 17, page_size=4, grows="float", zero_on_alloc=True, ids_from="first"),
        PoolSpec("third", 24, grows="down"),
    ),
    "two around their owner": _layout(
        380,
        PoolSpec("first", 7, page_size=2, ids_from="second"),
        PoolSpec("second", 9, page_size=3, grows="float", virtual_pages=30),
        PoolSpec("third", 4, page_size=5, grows="down", ids_from="second"),
    ),
    "two owners": _layout(
        700,
        PoolSpec("first", 6, page_size=2),
        PoolSpec("second", 10, page_size=2, grows="float", ids_from="first"),
        PoolSpec("third", 13, page_size=3, grows="float"),
        PoolSpec("fourth", 5, page_size=3, grows="down", ids_from="third"),
    ),
    "three of one": _layout(
        400,
        PoolSpec("first", 5, page_size=2, grows="down", ids_from="third"),
        PoolSpec("second", 8, page_size=4, grows="float", zero_on_alloc=True, ids_from="third"),
        PoolSpec("third", 9, page_size=2, grows="float", virtual_pages=36),
        PoolSpec("fourth", 3, page_size=1, grows="up", ids_from="third"),
    ),
}

RUNS = [
    *(("host", chain) for chain in CHAINS),
    *(("triton", chain) for chain in ("float beside an own pool", "two around their owner")),
]
"""By backend and chain: few in the interpreter, which takes milliseconds a program."""

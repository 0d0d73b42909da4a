"""Random scripts over SGLang's own pools: with the plugin, every list and byte ends as without."""

import zlib

import pytest

from .scripts import Script
from .worlds import LAYOUTS, Pair

SEEDS = range(40)


def run_script(layout: str, page_size: int, seed: int) -> int:
    mixed = zlib.crc32(f"{layout} {page_size} {seed}".encode())
    return Script(Pair(layout, page_size), page_size, mixed).run()


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("seed", SEEDS)
def test_plugin_ends_as_stock(layout: str, page_size: int, seed: int) -> None:
    run_script(layout, page_size, seed)

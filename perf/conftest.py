"""Fixtures of the benchmarks, and the table of the README after them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from rich.console import Console

from kvdefrag.perf.host_table import host_table
from kvdefrag.perf.interleaved import Meter

Rows = list[dict[str, Any]]
ROWS = pytest.StashKey[Rows]()


@pytest.fixture(autouse=True)
def one_core() -> Iterator[None]:
    """Run torch on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def meter(benchmark: Any, request: pytest.FixtureRequest) -> Meter:
    """Time this row and note its record."""
    return Meter(benchmark, request.config.stash.setdefault(ROWS, []))


def pytest_terminal_summary(config: pytest.Config) -> None:
    """Print the table that the README shows."""
    rows: Rows = config.stash.get(ROWS, [])
    table = host_table(rows)
    if table.row_count:
        Console(width=100).print(table)

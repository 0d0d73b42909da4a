"""What a launch costs in Python, beside Triton's own way, on a driver that does nothing."""

from collections.abc import Callable
from statistics import median
from time import thread_time_ns
from typing import Any

import pytest
import torch

from kvdefrag.kernels import bind, copy
from kvdefrag.kernels.copy import CHUNK_WORDS, FLAT_UNITS, WORDS
from kvdefrag.kernels.launch import LANES, launch
from kvdefrag.kernels.take import Take

from .stand_in_driver import StandInDriver

MAX_SHARE = 0.40
ROUNDS = 60
CALLS_PER_ROUND = 50

LIST = torch.zeros(64, dtype=torch.int64)
RECORD = torch.zeros(16, dtype=torch.int64)
BUFFER = torch.zeros(1 << 17, dtype=torch.uint8)

BIND = (LIST, LIST, LIST, LIST, LIST, RECORD, *Take(3, 0, 2, 2, 1, 5, 1, 0, 2, 9), 64, 64, 8)
COPY = (BUFFER, LIST, LIST, RECORD, LIST, LIST, LIST, 3, 4096, 4)
WIDE = {"REBIND": True, "WORD": WORDS[16], "WORDS_PER_UNIT": 2}

CALLS: dict[str, tuple[Any, tuple[Any, ...], tuple[Any, ...], dict[str, Any]]] = {
    "bind": (bind._bind_kernel, BIND, (), {"BLOCK": LANES}),
    "copy-chunked": (
        copy._copy_chunked_kernel, COPY, (16, False),
        {**WIDE, "BLOCK": CHUNK_WORDS, "LANES": LANES},
    ),
    "copy-flat": (
        copy._copy_flat_kernel, COPY, (16, False), {**WIDE, "UNITS": FLAT_UNITS, "LANES": LANES}
    ),
}  # fmt: skip


def alternating(*calls: Callable[[], object]) -> list[float]:
    """Median thread time of each call in nanoseconds, over rounds in which they take turns."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(ROUNDS):
        for call, taken in zip(calls, times, strict=True):
            started = thread_time_ns()
            for _ in range(CALLS_PER_ROUND):
                call()
            taken.append((thread_time_ns() - started) / CALLS_PER_ROUND)
    return [median(taken) for taken in times]


@pytest.mark.parametrize("name", CALLS)
def test_kept_handle_costs_a_fraction_of_a_jit_call(
    name: str, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    StandInDriver(records=False).install(monkeypatch)
    kernel, arguments, variant, constants = CALLS[name]
    kept, jit = alternating(
        lambda: launch(kernel, 3, *arguments, variant=variant, **constants),
        lambda: kernel[(3,)](*arguments, **constants),
    )
    record_property("share", kept / jit)
    assert kept <= MAX_SHARE * jit, f"{kept / 1e3:.2f} us beside {jit / 1e3:.2f} us"

"""A GPU runs programs in any order: the interpreter runs them shuffled, the result stays."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import triton.language as tl
from triton.runtime.interpreter import interpreter_builder

from kvdefrag.kernels.launch import jit, launch

from .byte_buffer import ByteBuffer, check_copy, random_moves
from .support import check, ids
from .test_bind import BIND, request
from .test_move_batch import TABLES, gathered, run_both
from .test_unbind import UNBIND
from .test_unbind import request as unbind_request


@contextmanager
def shuffled_programs(seed: int) -> Iterator[list[int]]:
    """Programs of every launch run in a random order; yields the ids in the order they ran."""
    set_index = interpreter_builder.set_grid_idx
    ran: list[int] = []

    def set_shuffled_index(x: int, y: int, z: int) -> None:
        programs = list(range(interpreter_builder.grid_dim[0]))
        random.Random(seed).shuffle(programs)
        ran.append(programs[x])
        set_index(programs[x], y, z)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter_builder, "set_grid_idx", set_shuffled_index)
        yield ran


@jit()
def _last_program_kernel(out: Any) -> None:
    tl.store(out, tl.program_id(0))


def test_programs_are_shuffled() -> None:
    out = torch.zeros(1, dtype=torch.int64)
    with shuffled_programs(1) as ran:
        launch(_last_program_kernel, 5, out)
    assert sorted(ran) == [0, 1, 2, 3, 4] != ran
    assert out.item() == ran[-1]


@pytest.mark.parametrize("seed", [1, 2])
def test_tables(seed: int) -> None:
    state, take = request("mixed", 600)
    with shuffled_programs(seed) as ran:
        check("bind", state, *BIND, take, 1)
        check("unbind", unbind_request(600), *UNBIND, 1)
        batch = gathered(1200, 550)
        check("gather_virtual", {**batch, "virtual_ids": ids([-7] * 550)}, *TABLES, 1)
        check("rebind", batch, *TABLES)
        check("translate", {**batch, "ids": ids(range(-5, 700))}, "v2p", "ids", 1200)
    assert len(ran) == 5 + 5 + 5 + 5 + 6


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(("page_bytes", "page_count"), [(80, 300), (4096, 20), (65536 + 8, 12)])
def test_bytes(seed: int, page_bytes: int, page_count: int) -> None:
    move_count = page_count // 4
    with shuffled_programs(seed):
        check_copy(ByteBuffer(page_bytes, page_count), *random_moves(page_count, move_count))
        run_both(ByteBuffer(page_bytes, page_count), gathered(page_count, move_count))

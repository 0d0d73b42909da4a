"""The kernels that take or give token ids, and the one that zeroes: no spill, no long division."""

import pytest

from .aot import AMD, NVIDIA, Code, build
from .checks import MAX_REGISTERS
from .variants import LAUNCHES, TOKENS, ZEROS

SET_KERNELS = ("unbind_tokens", "unbind_group")
MAX_SET_REGISTERS = 128
"""A program of 512 threads with as many still fits an SM."""

MAX_SHARED_BYTES = 40_000
"""Sums over lanes and the results of exchanges; an SM has several times as much."""


def check_code(code: Code, name: str) -> None:
    most = MAX_SET_REGISTERS if name.startswith(SET_KERNELS) else MAX_REGISTERS
    assert code.resources["REG"] <= most
    assert code.resources["STACK"] == code.resources["LOCAL"] == 0
    assert code.shared_bytes <= MAX_SHARED_BYTES
    assert (code.count(r"\b(div|rem)\.[su]64") > 0) == name.endswith("-wide")


@pytest.mark.parametrize("target", NVIDIA)
@pytest.mark.parametrize("name", TOKENS + ZEROS)
def test_nvidia(name: str, target: str) -> None:
    check_code(build(LAUNCHES[name], NVIDIA[target]), name)


@pytest.mark.parametrize("target", AMD)
@pytest.mark.parametrize("name", TOKENS + ZEROS)
def test_amd(name: str, target: str) -> None:
    code = build(LAUNCHES[name], AMD[target])
    assert code.resources["private_segment_fixed_size"] == 0
    assert code.resources["vgpr_spill_count"] == 0
    # A scalar that spills goes to a lane of a vector register, not to memory.
    assert code.resources["sgpr_spill_count"] == 0 or name.startswith(SET_KERNELS)


@pytest.mark.parametrize(("unit_bytes", "width"), [(16, "v2.b64"), (8, "b64"), (4, "b32")])
def test_zeros_are_written_in_whole_units(unit_bytes: int, width: str) -> None:
    code = build(LAUNCHES[f"zero-{unit_bytes}"], NVIDIA["sm_90"])
    assert code.count(rf"st\.global\.{width.replace('.', '[.]')}") > 0

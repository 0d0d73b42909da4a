"""The table kernels: lean code, and 32-bit division wherever token ids allow it."""

import pytest

from .aot import AMD, NVIDIA, build
from .checks import check_amd, check_lean, check_no_detour
from .variants import LAUNCHES, TABLES

ATOMIC = ("bind", "unbind", "gather")

# 128 lanes are half of a program's 256 threads on AMD, whose wavefronts have 64 threads. Only one
# of two threads does an exchange; it hands the result to the other one through shared memory.
EXCHANGED_BYTES = 128 * 8


@pytest.mark.parametrize("target", NVIDIA)
@pytest.mark.parametrize("name", TABLES)
def test_nvidia(name: str, target: str) -> None:
    code = build(LAUNCHES[name], NVIDIA[target])
    check_lean(code, wide=name.endswith("-wide"))
    assert (code.count(r"atom\.") > 0) == name.startswith(ATOMIC)


@pytest.mark.parametrize("name", [name for name in TABLES if "int32" not in name])
def test_machine_code(name: str) -> None:
    code = build(LAUNCHES[name], NVIDIA["sm_90"])
    if name.endswith("-wide"):
        assert [op for op in code.sass if op.startswith("CALL")]
    else:
        check_no_detour(code)
    # Some versions put a barrier on either side of an exchange; nothing else may wait.
    barriers = [op for op in code.sass if op.startswith("BAR")]
    exchanges = [op for op in code.sass if op.startswith("ATOM")]
    assert len(barriers) in (0, 2 * len(exchanges))


@pytest.mark.parametrize("target", AMD)
@pytest.mark.parametrize("name", TABLES)
def test_amd(name: str, target: str) -> None:
    code = build(LAUNCHES[name], AMD[target])
    check_amd(code, EXCHANGED_BYTES if name.startswith(ATOMIC) else 0)

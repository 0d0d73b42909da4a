"""The copy kernels: width, depth, order and registers of the compiled code."""

import pytest

from .aot import AMD, NVIDIA, build
from .checks import (
    check_amd,
    check_amd_width,
    check_lean,
    check_no_detour,
    check_order,
    check_rows,
    check_width,
)
from .variants import COPIES, FORMS, LAUNCHES, UNIT_BYTES

REBOUND_WORDS = 3


def parts(name: str) -> tuple[str, int, int]:
    """Form, unit bytes, and 8-byte stores beside the payload."""
    kind, form, unit_bytes = name.split("-")
    return form, int(unit_bytes), REBOUND_WORDS * (kind == "copy_rebind")


@pytest.mark.parametrize("target", NVIDIA)
@pytest.mark.parametrize("name", COPIES)
def test_nvidia(name: str, target: str) -> None:
    code = build(LAUNCHES[name], NVIDIA[target])
    check_lean(code)
    check_width(code, *parts(name))
    check_rows(code, parts(name)[0])
    if name.endswith("-16"):
        check_order(code)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("unit_bytes", UNIT_BYTES)
def test_no_load_follows_a_store(form: str, unit_bytes: int) -> None:
    code = build(LAUNCHES[f"copy-{form}-{unit_bytes}"], NVIDIA["sm_90"])
    accesses = [op[:3] for op in code.sass if op.startswith(("LDG", "STG"))]
    assert "LDG" not in accesses[accesses.index("STG") :]
    check_no_detour(code)


@pytest.mark.parametrize("target", AMD)
@pytest.mark.parametrize("name", COPIES)
def test_amd(name: str, target: str) -> None:
    code = build(LAUNCHES[name], AMD[target])
    check_amd(code)
    check_amd_width(code, *parts(name))
    check_rows(code, parts(name)[0])

"""Every check finds what it is for: kernels that were made worse fail it."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from kvdefrag.kernels import copy, layered

from .aot import AMD, NVIDIA, Code, Launch, build, recorded_launches
from .checks import (
    check_amd_width,
    check_lean,
    check_no_detour,
    check_order,
    check_rows,
    check_width,
)
from .variants import LAUNCHES, PAIRS, RECORD

HINT = ("base = tl.multiple_of(base, 16)", "base = base")
SHORT_IDS = ("tl.load(sources + pair)", "tl.load(sources + pair).to(tl.int32)")
SHORT_ROWS = ("base + source * page_units", "base + (source * page_units).to(tl.int32)")
LONG_UNITS = ("unit = tl.where(live, unit, 0).to(tl.int32)", "unit = tl.where(live, unit, 0)")


def altered(module: ModuleType, change: tuple[str, str], folder: Path) -> ModuleType:
    """A copy of ``module`` with one text replaced."""
    text = Path(module.__file__ or "").read_text()
    assert change[0] in text
    text = text.replace(*change).replace("from .", "from kvdefrag.kernels.")
    path = folder / f"altered_{module.__name__.split('.')[-1]}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    copy_of_module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy_of_module)
    return copy_of_module


def launch_of(module: ModuleType, page_bytes: int) -> Launch:
    buffer = torch.zeros(2 * page_bytes, dtype=torch.uint8)
    with recorded_launches(module) as launches:
        if hasattr(module, "Layers"):
            module.copy_pages_layered(module.Layers([buffer.view(2, -1)]), PAIRS, PAIRS, RECORD)
        else:
            module.copy_pages(buffer, PAIRS, PAIRS, page_bytes, RECORD)
    return launches[0]


def chunked_width(code: Code) -> None:
    check_width(code, "chunked", 16, 0)


def chunked_rows(code: Code) -> None:
    check_rows(code, "chunked")


def flat_width(code: Code) -> None:
    check_width(code, "flat", 16, 0)


@pytest.mark.parametrize(
    ("module", "page_bytes", "change", "check"),
    [
        (copy, 16384, HINT, chunked_width),
        (copy, 32, HINT, flat_width),
        (layered, 16384, HINT, chunked_width),
        (layered, 32, HINT, flat_width),
        (copy, 16384, HINT, check_order),
        (copy, 16384, SHORT_IDS, chunked_rows),
        (copy, 16384, SHORT_ROWS, chunked_rows),
        (copy, 32, LONG_UNITS, check_lean),
        (copy, 32, LONG_UNITS, check_no_detour),
    ],
)
def test_worse_kernel_is_found(
    module: ModuleType,
    page_bytes: int,
    change: tuple[str, str],
    check: Callable[[Code], None],
    tmp_path: Path,
) -> None:
    check(build(launch_of(module, page_bytes), NVIDIA["sm_90"]))
    worse = launch_of(altered(module, change, tmp_path), page_bytes)
    with pytest.raises(AssertionError):
        check(build(worse, NVIDIA["sm_90"]))


@pytest.mark.parametrize(("form", "page_bytes"), [("chunked", 16384), ("flat", 32)])
def test_hint_matters_on_amd(form: str, page_bytes: int, tmp_path: Path) -> None:
    code = build(launch_of(altered(copy, HINT, tmp_path), page_bytes), AMD["gfx942"])
    with pytest.raises(AssertionError):
        check_amd_width(code, form, 16, 0)


def test_tile_too_large_is_found() -> None:
    launch = LAUNCHES["copy-chunked-16"]
    for block in (8192, 32768):
        worse = launch._replace(constants={**launch.constants, "BLOCK": block})
        with pytest.raises(AssertionError):
            check_lean(build(worse, NVIDIA["sm_90"]))

"""Compile what the launchers launch, ahead of time and without a GPU, and read the machine code."""

import functools
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kvdefrag.kernels import (
    bind,
    borrow,
    copy,
    gather,
    layered,
    rebind,
    token_extend,
    token_free,
    token_group,
    token_grow,
    token_run,
    translate,
    zero,
)

NVIDIA = {f"sm_{arch}": GPUTarget("cuda", arch, 32) for arch in (80, 90, 100)}
AMD = {"gfx942": GPUTarget("hip", "gfx942", 64)}
TARGETS = {**NVIDIA, **AMD}

MODULES = (
    bind, borrow, copy, gather, layered, rebind, translate,
    token_extend, token_free, token_group, token_grow, token_run, zero,
)  # fmt: skip
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
TYPES = {torch.int64: "*i64", torch.int32: "*i32", torch.uint8: "*u8"}


class Launch(NamedTuple):
    """One call of ``kernels.launch.launch``."""

    kernel: Any
    program_count: int
    arguments: tuple[Any, ...]
    constants: dict[str, Any]
    variant: tuple[Any, ...]
    warps: int = 4


@contextmanager
def recorded_launches(*modules: ModuleType) -> Iterator[list[Launch]]:
    """Keeps what the launchers of ``modules`` would launch."""
    launches: list[Launch] = []

    def launch(
        kernel: Any, count: int, *arguments: Any, variant: tuple[Any, ...] = (), warps: int = 4,
        **constants: Any,
    ) -> None:  # fmt: skip
        launches.append(Launch(kernel, count, arguments, constants, variant, warps))

    with pytest.MonkeyPatch.context() as patch:
        for module in modules or MODULES:
            patch.setattr(module, "launch", launch)
        yield launches


def signature(launch: Launch) -> dict[str, str]:
    """The type of every argument, as Triton's JIT would derive it from this call."""
    types = {}
    names = iter(launch.kernel.arg_names)
    for value in launch.arguments:
        if isinstance(value, torch.Tensor):
            types[next(names)] = TYPES[value.dtype]
        else:
            types[next(names)] = "i32" if -(2**31) <= value < 2**31 else "i64"
    return {**types, **dict.fromkeys(names, "constexpr")}


def build(launch: Launch, target: GPUTarget) -> "Code":
    """The code of a launch: no argument is known to be aligned, or to have any value."""
    source = ASTSource(fn=launch.kernel, signature=signature(launch), constexprs=launch.constants)
    return Code(triton.compile(source, target=target, options={"num_warps": launch.warps}))


class Code:
    """A compiled kernel and what its text says."""

    def __init__(self, compiled: Any) -> None:
        self.asm: dict[str, Any] = compiled.asm
        self.shared_bytes: int = compiled.metadata.shared

    def count(self, pattern: str) -> int:
        """Matches in the PTX, or in the AMD assembly."""
        return len(re.findall(pattern, self.asm.get("ptx") or self.asm["amdgcn"]))

    @functools.cached_property
    def sass(self) -> list[str]:
        """The instructions of the NVIDIA machine code, without operands."""
        listing = self._tool("nvdisasm", "-c", "-ndf")
        return re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)", listing)

    @functools.cached_property
    def resources(self) -> dict[str, int]:
        """Registers, and bytes a thread of stack and local memory, or the AMD counterparts."""
        if "cubin" in self.asm:
            found = re.findall(
                r"(REG|STACK|SHARED|LOCAL):(\d+)", self._tool("cuobjdump", "-res-usage")
            )
        else:
            found = re.findall(r"\.(\w+_(?:count|size)):\s+(\d+)", self.asm["amdgcn"])
        return {name: int(value) for name, value in found}

    @property
    def row_products(self) -> list[str]:
        """Types of all products that have a loaded word as a factor: page ids by page units."""
        text = self.asm["ttir"]
        loaded = set(re.findall(r"(%\S+) = tt\.load", text))
        products = re.findall(r"arith\.muli (%[^\s,]+), (%[^\s,]+).*? : (\S+)", text)
        return [kind for left, right, kind in products if {left, right} & loaded]

    def _tool(self, name: str, *options: str) -> str:
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(self.asm["cubin"])
            file.flush()
            command = [str(TOOLS / name), *options, file.name]
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout

"""Compile a kernel for a GPU that need not be here, and read what it takes of an SM."""

import re
import subprocess
import tempfile
from collections.abc import Mapping
from typing import Any, NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.errors import TritonError
from triton.runtime.interpreter import InterpretedFunction


class CannotCompile(Exception):
    """No machine code can be had here; the message says why."""


class KernelCode(NamedTuple):
    """What a compiled kernel takes.

    ``registers``: of a thread, in the machine code. ``warps``: of a program. ``loads``: 16-byte
    loads of a thread before its first 16-byte store, which is how deep it keeps memory busy. They
    are counted in the PTX; disassembling takes a second a kernel.
    """

    registers: int
    warps: int
    loads: int


def compile_for(arch: int, kernel: Any, constants: Mapping[str, Any]) -> KernelCode:
    """Compile ``kernel`` with these constexpr arguments for compute capability ``arch / 10``.

    Types are those that the launchers pass: bytes in ``buffer``, int64 behind every other pointer,
    int32 numbers. Nothing is specialised, as in ``kernels.launch``. Raises CannotCompile in the
    interpreter, and where the compiler or ``cuobjdump`` is missing or fails.
    """
    if isinstance(kernel, InterpretedFunction):
        raise CannotCompile("Triton runs in its interpreter; set TRITON_INTERPRET=0 or unset it")
    try:
        reader = triton.knobs.nvidia.cuobjdump.path
        source = ASTSource(kernel, _signature(kernel, constants), dict(constants))
        # No kernel computes with floats; triton 3.9 warns where this is left open.
        options = {"enable_fp_fusion": True}
        compiled = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
        usage = _resource_usage(reader, compiled.asm["cubin"])
    except (OSError, RuntimeError, subprocess.SubprocessError, TritonError) as error:
        raise CannotCompile(str(error)) from error
    return read_code(usage, compiled.asm["ptx"], compiled.metadata.num_warps)


def read_code(usage: str, ptx: str, warps: int) -> KernelCode:
    """The figures of one kernel from ``cuobjdump -res-usage`` and from its PTX."""
    registers = re.search(r"\bREG:(\d+)", usage)
    if registers is None:
        raise CannotCompile("cuobjdump names no registers")
    wide = re.findall(r"\b(ld|st)\.global(?:\.\S+)?\.(?:v2\.[bu]64|v4\.[bu]32)\s", ptx)
    return KernelCode(int(registers[1]), warps, wide.index("st") if "st" in wide else 0)


def _signature(kernel: Any, constants: Mapping[str, Any]) -> dict[str, str]:
    types = {}
    for parameter in kernel.params:
        if parameter.name in constants:
            kind = "constexpr"
        elif parameter.name == "buffer":
            kind = "*u8"
        else:
            kind = "*i64" if parameter.do_not_specialize_on_alignment else "i32"
        types[parameter.name] = kind
    return types


def _resource_usage(reader: str, cubin: bytes) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [reader, "-res-usage", file.name]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout + done.stderr

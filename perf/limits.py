"""What a GPU's memory lets a page move reach, and what the compiled copy kernels ask of it.

All of it is computed; nothing is measured. Where the figures come from:

- SMs and peak bandwidth: NVIDIA's data sheets; B200 as its driver reports it (pytorch/ao #4002).
- Bandwidth that a copy sustains, read and written bytes together: see ``GPUS``.
- Limits of an SM: CUDA programming guide, compute capabilities 8.0, 9.0 and 10.0, which agree.
- Bytes in flight that CUB aims at: ``tuning_transform.cuh`` of NVIDIA/cccl.
- Latencies and the fixed cost of a launch: assumptions, named where they are defined.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import triton.language as tl

from kvdefrag.kernels.copy import (
    CHUNK_WORDS,
    FLAT_UNITS,
    _copy_chunked_kernel,
    _copy_flat_kernel,
)
from kvdefrag.kernels.launch import LANES
from kvdefrag.kernels.layered import _copy_layered_chunked_kernel, _copy_layered_flat_kernel

from .ahead_of_time import KernelCode, compile_for

REGISTERS_PER_SM = 65536
REGISTER_UNIT = 256
"""Registers come in units of this many a warp: 8 a thread."""
WARP_UNIT = 4
"""An SM has four register files, so warps that fit come in fours."""
WARPS_PER_SM = 64
PROGRAMS_PER_SM = 32
WARP_THREADS = 32
LOAD_BYTES = 16

DATA_LATENCY_US = 0.8
"""A load of payload from a busy memory. Assumed."""
LOOK_UP_LATENCY_US = 0.7
"""A load of 8 bytes that the next load waits for. Assumed."""
LATENCY_US = 2 * LOOK_UP_LATENCY_US + DATA_LATENCY_US
"""A program holds its registers through three loads: fault record, page ids, payload."""

LAUNCH_US = 2.5
"""Launch, ramp and drain of one kernel on the device, host not counted. Assumed."""

_WIDE = {"WORD": tl.int64, "WORDS_PER_UNIT": 2}
_REBINDING = {"REBIND": True, "LANES": LANES}
KERNELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "chunked": (_copy_chunked_kernel, {**_WIDE, **_REBINDING, "BLOCK": CHUNK_WORDS}),
    "flat": (_copy_flat_kernel, {**_WIDE, **_REBINDING, "UNITS": FLAT_UNITS}),
    "layered chunked": (_copy_layered_chunked_kernel, {**_WIDE, "BLOCK": CHUNK_WORDS}),
    "layered flat": (_copy_layered_flat_kernel, {**_WIDE, "UNITS": FLAT_UNITS}),
}
"""The copy kernels in 16-byte units, with the constants that their launchers pass."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU by its public figures.

    ``arch``: compute capability times ten. ``peak_tb_s``, ``sustained_tb_s``: memory bandwidth in
    10**12 bytes a second, read and written together. ``source``: of the sustained figure.
    ``cub_bytes``: bytes in flight an SM that CUB's transform aims at.
    """

    name: str
    arch: int
    sm_count: int
    peak_tb_s: float
    sustained_tb_s: float
    source: str
    cub_bytes: int

    @property
    def needed_bytes(self) -> float:
        """Bytes that an SM must have in flight for half the peak to be reads (Little's law)."""
        return self.peak_tb_s / 2 * 1e12 * LATENCY_US * 1e-6 / self.sm_count

    def floor_us(self, moved_bytes: int) -> float:
        """Time of a batch that moves so many bytes: all are read and written once."""
        return 2 * moved_bytes / (self.sustained_tb_s * 1e6) + LAUNCH_US


GPUS = (
    Gpu("A100-80", 80, 108, 2.04, 1.75, "assumed, 86 % of the peak", 16 << 10),
    Gpu("H100", 90, 132, 3.35, 2.91, "copy kernel of vLLM #49436 on H100", 32 << 10),
    Gpu("H200", 90, 132, 4.8, 4.3, "one torch device-to-device copy, 90 % of the peak", 48 << 10),
    Gpu("B200", 100, 148, 7.67, 5.9, "copy kernel of vLLM #48110 on GB200", 64 << 10),
)
ARCHITECTURES = sorted({gpu.arch for gpu in GPUS})
COMPILES = len(ARCHITECTURES) * len(KERNELS)


def programs_per_sm(code: KernelCode) -> int:
    """Programs of a kernel that are resident on an SM at a time. None uses shared memory."""
    warp_registers = -(-code.registers * WARP_THREADS // REGISTER_UNIT) * REGISTER_UNIT
    warps = REGISTERS_PER_SM // warp_registers // WARP_UNIT * WARP_UNIT
    return min(min(warps, WARPS_PER_SM) // code.warps, PROGRAMS_PER_SM)


def bytes_in_flight(code: KernelCode) -> int:
    """Payload bytes that the resident programs of an SM can have asked for at a time."""
    return programs_per_sm(code) * code.warps * WARP_THREADS * code.loads * LOAD_BYTES


def compile_kernels(on_step: Callable[[], None]) -> dict[tuple[int, str], KernelCode]:
    """Every copy kernel for every GPU, by architecture and name; ``on_step`` after each."""
    codes = {}
    for arch in ARCHITECTURES:
        for name, (kernel, constants) in KERNELS.items():
            codes[arch, name] = compile_for(arch, kernel, constants)
            on_step()
    return codes


def limits_of(
    gpu: Gpu, codes: dict[tuple[int, str], KernelCode], moved_bytes: int
) -> dict[str, Any]:
    """The figures of one GPU: its own, the floor of a move, and those of every kernel on it."""
    return {
        "name": gpu.name,
        "arch": f"sm_{gpu.arch}",
        "sms": gpu.sm_count,
        "peak_tb_s": gpu.peak_tb_s,
        "sustained_tb_s": gpu.sustained_tb_s,
        "sustained_source": gpu.source,
        "needed_bytes_per_sm": gpu.needed_bytes,
        "cub_bytes_per_sm": gpu.cub_bytes,
        "floor_us": gpu.floor_us(moved_bytes),
        "kernels": {
            name: {
                **codes[gpu.arch, name]._asdict(),
                "programs_per_sm": programs_per_sm(codes[gpu.arch, name]),
                "bytes_in_flight_per_sm": bytes_in_flight(codes[gpu.arch, name]),
                "share_of_need": bytes_in_flight(codes[gpu.arch, name]) / gpu.needed_bytes,
            }
            for name in KERNELS
        },
    }

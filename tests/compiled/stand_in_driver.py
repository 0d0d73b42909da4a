"""A stand-in for Triton's GPU driver: kernels are compiled, loaded and launched, and nothing runs.

Every launch is held against the code that it reaches, as no GPU driver would: a kept handle takes
whatever it is given.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime import JITFunction, driver

from kvdefrag.kernels import launch

from .aot import MODULES

SM_90 = GPUTarget("cuda", 90, 32)
GFX942 = GPUTarget("hip", "gfx942", 64)
KERNELS: dict[str, Any] = {
    name: value
    for module in MODULES
    for name, value in vars(module).items()
    if isinstance(value, JITFunction) and name.endswith("_kernel")
}
POINTERS = {torch.int64: "*i64", torch.int32: "*i32", torch.uint8: "*u8"}
MAX_INT32 = 2**31 - 1


class Launch(NamedTuple):
    """``name`` of the kernel, ``grid`` of three counts, ``arguments`` by name, with constants."""

    name: str
    grid: tuple[int, int, int]
    arguments: dict[str, Any]


class StandInDriver:
    """What Triton asks of a driver, for one device of ``target``.

    ``launches``: all launches so far. ``compiled``, ``loaded``: names of the kernels that were.
    ``keys``: kernel and what Triton tells its variants apart by. With ``compiles=False`` a kernel
    that Triton would compile is noted and not launched: no handle comes back, so that every call
    passes through Triton's own look-up. With ``records=False`` launches cost next to nothing and
    are not kept.
    """

    def __init__(
        self, target: GPUTarget = SM_90, compiles: bool = True, records: bool = True
    ) -> None:
        self.target = target
        self.compiles = compiles
        self.records = records
        self.launches: list[Launch] = []
        self.compiled: list[str] = []
        self.keys: set[tuple[str, str]] = set()
        self.loaded: list[str] = []
        self.utils = self

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Serve all launches from now on, with nothing compiled and no handle kept.

        Not taken back: a kernel that is collected later is unloaded by the active driver.
        """
        driver.set_active(self)
        patch.setattr(knobs.runtime, "jit_cache_hook", self._on_compile)
        launch._handles.clear()
        for kernel in KERNELS.values():
            kernel.device_caches.clear()

    def _on_compile(self, *, key: Any, fn: Any, **_: Any) -> bool:
        self.compiled.append(fn.name)
        self.keys.add((fn.name, str(key)))
        return not self.compiles

    def launcher_cls(self, source: ASTSource, metadata: Any) -> Callable[..., None]:
        """What a loaded kernel is called through."""

        def run(*call: Any) -> None:
            *grid, _, _, _, told, enter, leave = call[:9]
            named = dict(zip(source.fn.arg_names, call[9:], strict=True))
            check_arguments(source, named)
            if enter is not None:
                enter(told)
            self.launches.append(Launch(metadata.name, tuple(grid), named))
            if leave is not None:
                leave(told)

        return run if self.records else _ignore

    def load_binary(self, name: str, *_: Any) -> tuple[int, int, int, int, int]:
        """Module, function, registers, spills and most threads of a program."""
        self.loaded.append(name)
        return len(self.loaded), len(self.loaded), 0, 0, 1024

    def unload_module(self, module: int) -> None:
        """Nothing was loaded."""

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": 227 << 10, "multiprocessor_count": 132, "warpSize": 32}

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def _ignore(*_: Any) -> None:
    """Launch nothing, and remember nothing."""


def check_arguments(source: ASTSource, arguments: dict[str, Any]) -> None:
    """Raise TypeError unless the code compiled from ``source`` is right for these arguments."""
    for index, (name, kind) in enumerate(source.signature.items()):
        value = arguments[name]
        if kind == "constexpr":
            fits = source.constants[(index,)] == value
        elif kind.startswith("*"):
            fits = isinstance(value, torch.Tensor) and POINTERS[value.dtype] == kind
        else:
            bits = int(kind.removeprefix("i")) - 1
            fits = type(value) is int and -(2**bits) <= value < 2**bits
        if not fits or not all(_holds(hint, value) for hint in source.attrs.get((index,), ())):
            raise TypeError(f"{name}: compiled for {kind}, {source.attrs}, got {value!r}")


def _holds(hint: tuple[str, int], value: Any) -> bool:
    what, number = hint
    if what == "tt.divisibility":
        place: int = value.data_ptr() if isinstance(value, torch.Tensor) else value
        return place % number == 0
    assert (what, number) == ("tt.pointer_range", 32)
    return bool(value.untyped_storage().size() <= MAX_INT32)

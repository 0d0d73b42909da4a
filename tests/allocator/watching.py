"""What an arena really does to tensors: every launch, copy and read, seen from outside.

Two modes watch at once. The dispatcher sees every operator; ``tolist()`` and ``cpu()`` of a CPU
tensor reach the Python surface alone. A read of device data raises ``ScalarRead`` at once.
Triton's interpreter works on tensors itself: a launch is counted and its inside is not watched.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.interpreter import GridExecutor

from kvdefrag import Arena

PYTHON_READS = {
    "item", "tolist", "cpu", "numpy", "nonzero", "argwhere", "unique", "unique_consecutive",
    "masked_select", "equal", "allclose", "is_nonzero", "__bool__", "__int__", "__float__",
    "__index__", "unbind", "__contains__", "__array__", "__complex__",
}  # fmt: skip
OPERATOR_READS = {
    "_local_scalar_dense", "item", "nonzero", "nonzero_static", "argwhere", "_unique", "_unique2",
    "unique_dim", "unique_consecutive", "masked_select", "equal", "is_nonzero", "bincount",
}  # fmt: skip
MASKED = {"index", "index_put_", "index_put", "_index_put_impl_"}
COPIES = {"copy_", "_to_copy", "clone", "_copy_from", "contiguous"}
NO_WORK = {
    "empty", "empty_like", "empty_strided", "new_empty", "slice", "select", "view", "_unsafe_view",
    "alias", "detach", "as_strided", "unsqueeze", "squeeze", "expand", "t", "transpose", "resize_",
}  # fmt: skip


class ScalarRead(AssertionError):
    """Device data was read by the host."""


class Watch:
    """What was seen. ``grids``: one for every Triton launch. Copies by direction, in numbers."""

    def __init__(self, arena: Arena) -> None:
        compactor = arena._shared.compactor
        self.pinned = [
            staging.pinned for staging in (compactor._reader._staging, compactor._upload)
        ]
        self.unwatched = False
        self.reset()

    def reset(self) -> None:
        self.grids: list[tuple[int, ...]] = []
        self.operators: list[str] = []
        self.allocations = 0
        self.down = self.up = self.inside = 0

    @property
    def launches(self) -> int:
        """Triton launches, operators that work on device data, and copies inside the device."""
        return len(self.grids) + len(self.operators) + self.inside

    def counts(self) -> tuple[int, int, int]:
        """Launches, device-to-host copies, host-to-device copies."""
        return self.launches, self.down, self.up

    def is_pinned(self, tensor: Any) -> bool:
        place = tensor.untyped_storage().data_ptr()
        return any(place == pinned.untyped_storage().data_ptr() for pinned in self.pinned)

    def on_python(self, name: str, arguments: tuple[Any, ...]) -> None:
        if name in PYTHON_READS:
            raise ScalarRead(name)
        if name in ("__getitem__", "__setitem__"):
            keys = arguments[1] if isinstance(arguments[1], tuple) else (arguments[1],)
            if any(isinstance(key, int) or is_mask(key) for key in keys):
                raise ScalarRead(f"{name} with {arguments[1]!r}")

    def on_operator(self, name: str, arguments: tuple[Any, ...]) -> None:
        if name in OPERATOR_READS or (name in MASKED and any(map(is_mask, arguments[1]))):
            raise ScalarRead(name)
        if name == "copy_":
            into, out_of = (self.is_pinned(tensor) for tensor in arguments[:2])
            self.down += into and not out_of
            self.up += out_of and not into
            self.inside += into == out_of
        elif name in COPIES:
            self.inside += 1
        elif name.startswith(("empty", "new_empty")):
            self.allocations += 1
        elif name not in NO_WORK:
            self.operators.append(name)


def is_mask(key: Any) -> bool:
    return isinstance(key, torch.Tensor) and key.dtype in (torch.bool, torch.uint8)


class _PythonMode(TorchFunctionMode):
    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self.watch.unwatched:
            self.watch.on_python(func.__name__, args)
        return func(*args, **(kwargs or {}))


class _OperatorMode(TorchDispatchMode):
    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self.watch.unwatched:
            self.watch.on_operator(func.overloadpacket.__name__, args)
        return func(*args, **(kwargs or {}))


@contextmanager
def watching(arena: Arena) -> Iterator[Watch]:
    """Watch everything that happens to tensors; ``arena`` is on the Triton backend."""
    watch = Watch(arena)

    def unwatched(function: Any, note: bool) -> Any:
        def call(*arguments: Any, **more: Any) -> Any:
            if note:
                watch.grids.append(arguments[0].grid)
            watch.unwatched, before = True, watch.unwatched
            try:
                return function(*arguments, **more)
            finally:
                watch.unwatched = before

        return call

    with (
        patch.object(GridExecutor, "__call__", unwatched(GridExecutor.__call__, note=True)),
        _PythonMode(watch),
        _OperatorMode(watch),
    ):
        yield watch

"""An arena whose kernels are recorded by the stand-in driver, and whose calls still take effect."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kvdefrag import Arena, PoolSpec
from kvdefrag.kernels import backend
from kvdefrag.kernels.backend import TritonBackend
from kvdefrag.kernels.bind import bind_host, unbind_host
from kvdefrag.kernels.borrow import bind_borrowed_host
from kvdefrag.kernels.copy import Rebinding, copy_pages_host
from kvdefrag.kernels.gather import gather_virtual_host
from kvdefrag.kernels.rebind import rebind_host
from kvdefrag.kernels.token_extend import extend_host
from kvdefrag.kernels.token_free import unbind_tokens_host
from kvdefrag.kernels.token_group import Segment, unbind_group_host
from kvdefrag.kernels.token_grow import bind_tokens_host, decode_host
from kvdefrag.kernels.token_run import unbind_run_host
from kvdefrag.kernels.translate import translate_host, translate_tokens_host
from kvdefrag.kernels.zero import zero_pages_host

from .stand_in_driver import StandInDriver

TWINS: dict[str, Callable[..., Any]] = {
    "bind": bind_host,
    "bind_borrowed": bind_borrowed_host,
    "unbind": unbind_host,
    "gather_virtual": gather_virtual_host,
    "copy_pages": copy_pages_host,
    "rebind": rebind_host,
    "translate": translate_host,
    "translate_tokens": translate_tokens_host,
    "unbind_tokens": unbind_tokens_host,
    "unbind_group": unbind_group_host,
    "unbind_run": unbind_run_host,
    "bind_tokens": bind_tokens_host,
    "decode": decode_host,
    "extend": extend_host,
    "zero_pages": zero_pages_host,
}
NO_WORK = {"empty", "slice", "view", "select", "detach", "alias", "as_strided"}


def recorded_arena(patch: pytest.MonkeyPatch, pools: list[PoolSpec], total_bytes: int) -> Arena:
    """An arena on the Triton backend and the CPU: recorded there, done by the host twins."""
    patch.setattr(backend, "InterpretedFunction", object)
    for name, twin in TWINS.items():
        patch.setattr(TritonBackend, name, _followed(getattr(TritonBackend, name), twin))
    return Arena(total_bytes, pools, device="cpu", backend="triton")


def _followed(launcher: Callable[..., Any], twin: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: TritonBackend, *arguments: Any) -> Any:
        out = launcher(self, *arguments)
        done = twin(*map(_on_host, arguments))
        if out is not None:
            out.numpy()[:] = done
        return out

    return method


def _on_host(argument: Any) -> Any:
    if isinstance(argument, Rebinding):
        return Rebinding(*map(_on_host, argument))
    if isinstance(argument, Segment):
        return Segment(*map(_on_host, argument))
    if isinstance(argument, list):
        return [_on_host(each) for each in argument]
    return argument.numpy() if isinstance(argument, torch.Tensor) else argument


class Seen:
    """``kernels`` that were launched, and ``operators`` of torch that work on a device, in order.

    ``backend_launches``: how many launches the arena counts itself.
    """

    def __init__(self) -> None:
        self.kernels: list[str] = []
        self.operators: list[str] = []
        self.backend_launches = 0


class _Operators(TorchDispatchMode):
    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self.names = names

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (name := func.overloadpacket.__name__) not in NO_WORK:
            self.names.append(name)
        return func(*args, **(kwargs or {}))


@contextmanager
def seen_during(gpu: StandInDriver, arena: Arena) -> Iterator[Seen]:
    """What the calls inside really launch."""
    seen = Seen()
    first, before = len(gpu.launches), arena.stats().launches
    with _Operators(seen.operators):
        yield seen
    seen.kernels += [launch.name for launch in gpu.launches[first:]]
    seen.backend_launches = arena.stats().launches - before

"""Triton's interpreter with teeth: it raises on int32 overflow and on addresses out of bounds."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from triton.runtime.interpreter import interpreter_builder

FAR = 2**48
"""No two allocations of a process are so many bytes apart: an address is made of garbage."""

NEAR = 64
"""Masked-off lanes of an array may run into the next guard, but not to within this of its end."""


@contextmanager
def checked_overflow() -> Iterator[None]:
    """int32 arithmetic that overflows raises instead of wrapping."""
    options = dataclasses.replace(interpreter_builder.options, debug=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter_builder, "options", options)
        yield


class Extent(NamedTuple):
    """Addresses: ``start <= first <= end <= stop``; what lies outside ``first..end`` is guard."""

    start: int
    first: int
    end: int
    stop: int


def extent(whole: torch.Tensor, first: int, end: int) -> Extent:
    """Elements ``first`` to ``end`` of ``whole`` may be accessed."""
    start, width = whole.data_ptr(), whole.element_size()
    stop = start + whole.numel() * width
    return Extent(start, start + first * width, start + end * width, stop)


def inspect(pointers: Any, mask: Any, extents: tuple[Extent, ...]) -> None:
    """No lane reads or writes a guard; none, masked off or not, points to row -1 or far away."""
    addresses, live = np.broadcast_arrays(pointers.data.view(np.int64), mask.data.astype(bool))
    for start, first, end, stop in extents:
        before = (addresses >= start) & (addresses < first)
        behind = (addresses >= end) & (addresses < stop)
        assert not (before & live).any(), "access before the memory"
        assert not (behind & live).any(), "access behind the memory"
        assert not (before & (addresses >= first - NEAR)).any(), "address just before the memory"
        assert (np.abs(addresses - start) < FAR).all(), "address made of garbage"


@contextmanager
def checked_memory(*extents: Extent) -> Iterator[None]:
    """Every load, store and exchange in the interpreter is inspected."""
    load = interpreter_builder.create_masked_load
    store = interpreter_builder.create_masked_store
    exchange = interpreter_builder.create_atomic_rmw

    def checked_load(pointers: Any, mask: Any, *rest: Any) -> Any:
        inspect(pointers, mask, extents)
        return load(pointers, mask, *rest)

    def checked_store(pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        inspect(pointers, mask, extents)
        return store(pointers, value, mask, *rest)

    def checked_exchange(operation: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        inspect(pointers, mask, extents)
        return exchange(operation, pointers, value, mask, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter_builder, "create_masked_load", checked_load)
        patch.setattr(interpreter_builder, "create_masked_store", checked_store)
        patch.setattr(interpreter_builder, "create_atomic_rmw", checked_exchange)
        yield

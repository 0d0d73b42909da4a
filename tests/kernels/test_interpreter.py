"""The interpreter has teeth: each of its checks bites."""

import dataclasses

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.errors import InterpreterError
from triton.runtime.interpreter import interpreter_builder

from .interpreter import checked_memory, extent


@triton.jit(do_not_specialize=["page", "page_words"])
def _product_kernel(out, page, page_words):
    tl.store(out, page * page_words)


@triton.jit
def _move_kernel(data, source, target, source_mask, target_mask):
    lane = tl.arange(0, 2)
    words = tl.load(data + source + lane, mask=lane < source_mask, other=0)
    tl.store(data + target + lane, words, mask=lane < target_mask)


@triton.jit
def _exchange_kernel(data, at):
    tl.atomic_xchg(data + at + tl.arange(0, 1), tl.full((1,), -1, tl.int64))


def test_product_in_range() -> None:
    out = torch.zeros(1, dtype=torch.int64)
    _product_kernel[(1,)](out, 2**15 - 1, 2**16)
    assert out.tolist() == [2**31 - 2**16]


def test_overflow_raises() -> None:
    out = torch.zeros(1, dtype=torch.int64)
    with pytest.raises(InterpreterError, match="int32 overflow"):
        _product_kernel[(1,)](out, 2**15, 2**16)
    assert out.tolist() == [0]


def test_overflow_wraps_without_the_fixture(monkeypatch: pytest.MonkeyPatch) -> None:
    options = dataclasses.replace(interpreter_builder.options, debug=False)
    monkeypatch.setattr(interpreter_builder, "options", options)
    out = torch.zeros(1, dtype=torch.int64)
    _product_kernel[(1,)](out, 2**15, 2**16)
    assert out.tolist() == [-(2**31)]


def test_access_inside() -> None:
    data = torch.arange(9)
    with checked_memory(extent(data, 2, 7)):
        _move_kernel[(1,)](data, 2, 5, 2, 2)
        _move_kernel[(1,)](data, 6, 6, 1, 1)
        _exchange_kernel[(1,)](data, 4)
    assert data.tolist() == [0, 1, 2, 3, -1, 2, 3, 7, 8]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((6, 4, 2, 2), "behind"),
        ((4, 6, 2, 2), "behind"),
        ((1, 4, 2, 2), "before"),
        ((4, 1, 2, 2), "before"),
        ((1, 4, 0, 2), "just before"),
        ((2**60, 4, 0, 2), "garbage"),
    ],
)
def test_access_outside(arguments: tuple[int, ...], message: str) -> None:
    data = torch.arange(9)
    with checked_memory(extent(data, 2, 7)), pytest.raises(InterpreterError, match=message):
        _move_kernel[(1,)](data, *arguments)
    assert data.tolist() == list(range(9))


@pytest.mark.parametrize(("at", "message"), [(1, "before"), (7, "behind")])
def test_exchange_outside(at: int, message: str) -> None:
    data = torch.arange(9)
    with checked_memory(extent(data, 2, 7)), pytest.raises(InterpreterError, match=message):
        _exchange_kernel[(1,)](data, at)
    assert data.tolist() == list(range(9))

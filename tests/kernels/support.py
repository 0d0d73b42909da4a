"""Guarded memory, and an operation run three ways on identical input."""

import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from kvdefrag.kernels import (
    bind,
    borrow,
    gather,
    rebind,
    token_extend,
    token_free,
    token_grow,
    token_run,
    translate,
)

from . import model, token_model
from .interpreter import Extent, checked_memory, extent

SIZES = (0, 1, 2, 127, 128, 129, 257)
"""Around the 128 ids of a program."""

TWIN_SIZES = (511, 512, 1000)
"""The twins take another path from 512 rows on."""

SIZED = [*((size, True) for size in SIZES), *((size, False) for size in TWIN_SIZES)]
"""Size, and whether the kernel takes part: the interpreter takes milliseconds a program."""

GUARD_WORDS = 512
"""More than the lanes of a program at any stride, so that a lost mask meets a guard."""

GARBAGE = {torch.int64: (2**62, -1, 2**60), torch.int32: (2**30, -1, 2**31 - 1)}
"""What a lane may find past the count. 8 * 2**62 is 0 in 64 bits, 8 * 2**60 is far away."""

OPERATIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]] = {
    "gather_virtual": (gather.gather_virtual, gather.gather_virtual_host, model.gather_virtual),
    "rebind": (rebind.rebind, rebind.rebind_host, model.rebind),
    "bind": (bind.bind, bind.bind_host, model.bind),
    "bind_borrowed": (borrow.bind_borrowed, borrow.bind_borrowed_host, model.bind_borrowed),
    "unbind": (bind.unbind, bind.unbind_host, model.unbind),
    "translate": (translate.translate, translate.translate_host, model.translate),
    "translate_tokens": (
        translate.translate_tokens,
        translate.translate_tokens_host,
        model.translate_tokens,
    ),
    "unbind_tokens": (
        token_free.unbind_tokens,
        token_free.unbind_tokens_host,
        token_model.unbind_tokens,
    ),
    "unbind_run": (token_run.unbind_run, token_run.unbind_run_host, token_model.unbind_run),
    "bind_tokens": (
        token_grow.bind_tokens,
        token_grow.bind_tokens_host,
        token_model.bind_tokens,
    ),
    "decode": (token_grow.decode, token_grow.decode_host, token_model.decode),
    "extend": (token_extend.extend, token_extend.extend_host, token_model.extend),
}

SCRATCH = ("marks",)
"""Regions that only the kernels write; their guards are compared."""


class Region:
    """``length`` elements of ``whole``, ``stride`` apart, between guards."""

    def __init__(self, whole: torch.Tensor, length: int, stride: int) -> None:
        self.whole = whole
        self.length = length
        self.stride = stride

    @property
    def inner(self) -> torch.Tensor:
        end = GUARD_WORDS + self.length * self.stride
        return self.whole[GUARD_WORDS : end : self.stride]

    def __repr__(self) -> str:
        return f"Region({self.inner.tolist()}, {self.inner.dtype}, stride {self.stride})"

    @property
    def extent(self) -> Extent:
        return extent(self.whole, GUARD_WORDS, GUARD_WORDS + self.length * self.stride)

    def clone(self) -> "Region":
        return Region(self.whole.clone(), self.length, self.stride)

    def holding(self, values: Sequence[int]) -> "Region":
        copy = self.clone()
        copy.inner[:] = torch.tensor(values, dtype=self.whole.dtype)
        return copy


State = dict[str, Region]


class Rows(NamedTuple):
    """The region ``name`` as rows of ``width`` words; changes of a model's rows are lost."""

    name: str
    width: int

    def of_tensor(self, state: State) -> torch.Tensor:
        return state[self.name].inner.view(-1, self.width)

    def of_list(self, rows: dict[str, list[int]]) -> list[list[int]]:
        values = rows[self.name]
        return [values[start : start + self.width] for start in range(0, len(values), self.width)]


def words(values: Sequence[int]) -> Region:
    """int64 words between guards that are neither -1 nor alike."""
    whole = torch.arange(len(values) + 2 * GUARD_WORDS) + 2**61
    return Region(whole, len(values), 1).holding(values)


def ids(values: Sequence[int], dtype: torch.dtype = torch.int64, stride: int = 1) -> Region:
    """Ids with garbage before, between and after: huge ids and -1 by turns."""
    garbage = torch.tensor(GARBAGE[dtype], dtype=dtype)
    whole = garbage.repeat(len(values) * stride // 3 + GUARD_WORDS)
    return Region(whole, len(values), stride).holding(values)


def tables(num_pages: int, num_ids: int, live: int, seed: int = 0) -> State:
    """v2p and p2v with ``live`` random pairs, and an empty record."""
    chance = random.Random(seed)
    v2p, p2v = [0] + [-1] * (num_ids - 1), [0] + [-1] * (num_pages - 1)
    pages = chance.sample(range(1, num_pages), live)
    for virtual, page in zip(chance.sample(range(1, num_ids), live), pages, strict=True):
        v2p[virtual], p2v[page] = page, virtual
    return {"v2p": words(v2p), "p2v": words(p2v), "record": words([0] * 16)}


def row(state: State, name: str) -> list[int]:
    values: list[int] = state[name].inner.tolist()
    return values


def bound(state: State, table: str) -> list[int]:
    return [index for index, other in enumerate(row(state, table)) if index and other != -1]


def unbound(state: State, table: str) -> list[int]:
    return [index for index, other in enumerate(row(state, table)) if other == -1]


def differences(got: torch.Tensor, want: torch.Tensor) -> list[tuple[int, int, int]]:
    """(index from the first inner element, got, want) of the first few that differ."""
    where = (got != want).nonzero().flatten().tolist()[:8]
    return [(at - GUARD_WORDS, int(got[at]), int(want[at])) for at in where]


def check(name: str, state: State, *arguments: Any, interpret: bool = True) -> State:
    """Run an operation on copies of ``state`` three ways; returns the state that all agree on.

    A string among ``arguments`` names a region, and so do ``Rows``. Every word of every region is
    compared.
    """
    launcher, twin, plain = OPERATIONS[name]
    rows = {key: row(state, key) for key in state}
    wanted = plain(
        *(
            a.of_list(rows) if isinstance(a, Rows) else rows[a] if isinstance(a, str) else a
            for a in arguments
        )
    )
    after = {key: state[key].holding(rows[key]) for key in state}
    for way in (twin, launcher) if interpret else (twin,):
        copy = {key: region.clone() for key, region in state.items()}
        tensors = [
            a.of_tensor(copy) if isinstance(a, Rows) else copy[a].inner if isinstance(a, str) else a
            for a in arguments
        ]
        if way is twin:
            tensors = [a.numpy() if isinstance(a, torch.Tensor) else a for a in tensors]
        with checked_memory(*(region.extent for region in copy.values())):
            result = way(*tensors)
        for key in state:
            if key in SCRATCH:
                copy[key].inner[:] = after[key].inner
            found = differences(copy[key].whole, after[key].whole)
            assert not found, f"{way.__name__}: {key}"
        if wanted is None:
            assert result is None
        else:
            assert np.asarray(result).dtype == np.int64
            assert result.tolist() == wanted, way.__name__
    return after

"""Where the tensors of a model lie in a page envelope: byte geometry from model figures.

A layout lists the *parts* of an envelope. A part is one tensor of one layer, such as the keys of a
page's tokens; its offset and strides are the same in every page. Nothing here allocates or touches
a tensor: ``page_bytes`` and ``page_size`` of a layout make a ``PoolSpec``, and ``pool.views`` gives
its parts as tensors over the pool's pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from .faults import UsageError
from .geometry import require_count


@dataclass(frozen=True)
class Part:
    """One tensor of a page: ``name`` of ``layer``, at byte ``offset`` of the envelope.

    ``shape``: elements of ``dtype`` in one page; ``strides``: bytes from one to the next.
    """

    name: str
    layer: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    @property
    def end(self) -> int:
        """The byte of the envelope behind its last element."""
        steps = zip(self.shape, self.strides, strict=True)
        return self.offset + sum((n - 1) * step for n, step in steps) + self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.name!r} of layer {self.layer} ({self.dtype})"


@dataclass(frozen=True)
class EnvelopeLayout:
    """The parts of an envelope of ``page_bytes`` bytes that holds ``page_size`` tokens.

    ``alignment``: bytes of which every part's offset, the page and the buffer's address are to be
    multiples; 1 where the model asks for none.
    """

    page_bytes: int
    page_size: int
    alignment: int
    parts: tuple[Part, ...]

    def part(self, name: str, layer: int) -> Part:
        """The part ``name`` of ``layer``; UsageError if there is none."""
        for part in self.parts:
            if part.name == name and part.layer == layer:
                return part
        raise UsageError(f"part: no {name!r} of layer {layer!r} in {self.names} of {self.layers}")

    @property
    def names(self) -> list[str]:
        """The names of the parts, each once."""
        return list(dict.fromkeys(part.name for part in self.parts))

    @property
    def layers(self) -> list[int]:
        """The layers that have parts, each once."""
        return list(dict.fromkeys(part.layer for part in self.parts))


def attention_layout(
    layers: int | Sequence[int],
    kv_heads: int,
    head_dim: int,
    page_size: int,
    dtype: torch.dtype,
    *,
    value_head_dim: int | None = None,
    scale_dtype: torch.dtype | None = None,
    scale_group: int | None = None,
    alignment: int | None = None,
    padding_bytes: int = 0,
) -> EnvelopeLayout:
    """Multi-head or grouped-query attention: "k" and "v" [page_size, kv_heads, head_dim] a layer.

    ``layers``: how many, or their numbers in the model. ``head_dim`` counts elements of ``dtype``
    (of a packed one, such as two 4-bit values a byte, its bytes); ``value_head_dim``: that of the
    values where it differs. ``scale_dtype`` adds a strip behind all layers: "k_scale" and "v_scale"
    [page_size, kv_heads, groups], one scale for ``scale_group`` elements of a head, by default for
    the whole head. ``alignment``: bytes; every part starts at a multiple of it, and so does the
    next page; by default of its own items, the page of the largest; 1 leaves no gaps.
    ``padding_bytes``: unused bytes at the end of the envelope, behind what alignment adds.
    """
    numbers = _layer_numbers(layers)
    heads = require_count("kv_heads", kv_heads, minimum=1)
    tokens = require_count("page_size", page_size, minimum=1)
    key_dim = require_count("head_dim", head_dim, minimum=1)
    value_dim = key_dim
    if value_head_dim is not None:
        value_dim = require_count("value_head_dim", value_head_dim, minimum=1)
    groups = _group_counts((key_dim, value_dim), scale_dtype, scale_group)
    packing = _Packing(alignment)
    for layer in numbers:
        packing.add("k", layer, (tokens, heads, key_dim), dtype)
        packing.add("v", layer, (tokens, heads, value_dim), dtype)
    if scale_dtype is not None:
        for layer in numbers:
            packing.add("k_scale", layer, (tokens, heads, groups[0]), scale_dtype)
            packing.add("v_scale", layer, (tokens, heads, groups[1]), scale_dtype)
    return packing.closed(tokens, padding_bytes)


def mla_layout(
    layers: int | Sequence[int],
    latent_dim: int,
    rope_dim: int,
    page_size: int,
    dtype: torch.dtype,
    *,
    rope_dtype: torch.dtype | None = None,
    scale_dtype: torch.dtype | None = None,
    scale_group: int | None = None,
    alignment: int | None = None,
    padding_bytes: int = 0,
) -> EnvelopeLayout:
    """Multi-head latent attention: one row a token and layer, of "latent", "scale" and "rope".

    "latent" is [page_size, latent_dim], "rope" [page_size, rope_dim] in ``rope_dtype``, by default
    ``dtype``. Between them, with ``scale_dtype``, "scale" [page_size, groups]: one for
    ``scale_group`` elements of the latent, by default for all of it. Where the row is of one dtype
    and has no scale, "kv" [page_size, latent_dim + rope_dim] is the whole of it. Within a row every
    field starts at a multiple of its items; ``layers``, ``alignment`` and ``padding_bytes`` as in
    ``attention_layout``.
    """
    numbers = _layer_numbers(layers)
    tokens = require_count("page_size", page_size, minimum=1)
    latent = require_count("latent_dim", latent_dim, minimum=1)
    rope = require_count("rope_dim", rope_dim, minimum=1)
    rope_dtype = dtype if rope_dtype is None else rope_dtype
    (groups,) = _group_counts((latent,), scale_dtype, scale_group)
    fields = [("latent", latent, dtype), ("rope", rope, rope_dtype)]
    if scale_dtype is not None:
        fields.insert(1, ("scale", groups, scale_dtype))
    packing = _Packing(alignment)
    for layer in numbers:
        packing.add_rows(layer, tokens, fields)
        if scale_dtype is None and rope_dtype == dtype:
            packing.span_rows("kv", layer, latent + rope)
    return packing.closed(tokens, padding_bytes)


def mamba_layout(
    layers: int | Sequence[int],
    conv_shape: Sequence[int],
    state_shape: Sequence[int],
    conv_dtype: torch.dtype,
    state_dtype: torch.dtype,
    *,
    alignment: int | None = None,
    padding_bytes: int = 0,
) -> EnvelopeLayout:
    """The state of Mamba and other linear attention: "conv" and "state" a layer, one page a slot.

    ``conv_shape``: the inputs that the convolution looks back on, such as (channels, kernel - 1).
    ``state_shape``: the recurrent (temporal) state, such as (heads, head_dim, state_dim).
    ``page_size`` is 1; ``layers``, ``alignment`` and ``padding_bytes`` as in ``attention_layout``.
    """
    conv, state = _shape("conv_shape", conv_shape), _shape("state_shape", state_shape)
    packing = _Packing(alignment)
    for layer in _layer_numbers(layers):
        packing.add("conv", layer, conv, conv_dtype)
        packing.add("state", layer, state, state_dtype)
    return packing.closed(1, padding_bytes)


class _Packing:
    """An envelope being filled; ``end`` is the byte behind its last part."""

    def __init__(self, alignment: int | None) -> None:
        self.parts: list[Part] = []
        self.end = 0
        self.alignment = alignment
        if alignment is not None:
            self.alignment = require_count("alignment", alignment, minimum=1)

    def add(self, name: str, layer: int, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        """A part whose elements lie one behind the other."""
        item_bytes = _item_bytes(name, dtype)
        offset = _rounded_up(self.end, self.alignment or item_bytes)
        strides = tuple(prod(shape[axis + 1 :]) * item_bytes for axis in range(len(shape)))
        self.parts.append(Part(name, layer, offset, shape, strides, dtype))
        self.end = offset + prod(shape) * item_bytes

    def add_rows(
        self, layer: int, row_count: int, fields: Sequence[tuple[str, int, torch.dtype]]
    ) -> None:
        """Parts that share rows: of every field (name, length, dtype) a stretch in each row."""
        row_bytes, widest = 0, 1
        places = []
        for name, length, dtype in fields:
            item_bytes = _item_bytes(name, dtype)
            row_bytes = _rounded_up(row_bytes, item_bytes)
            places.append(row_bytes)
            row_bytes += length * item_bytes
            widest = max(widest, item_bytes)
        row_bytes = _rounded_up(row_bytes, widest)
        start = _rounded_up(self.end, self.alignment or widest)
        for (name, length, dtype), place in zip(fields, places, strict=True):
            strides = (row_bytes, dtype.itemsize)
            shape = (row_count, length)
            self.parts.append(Part(name, layer, start + place, shape, strides, dtype))
        self.end = start + row_count * row_bytes

    def span_rows(self, name: str, layer: int, length: int) -> None:
        """A part over the whole of the rows added last, which are of one dtype."""
        first = next(part for part in self.parts if part.layer == layer)
        shape = (first.shape[0], length)
        self.parts.append(Part(name, layer, first.offset, shape, first.strides, first.dtype))

    def closed(self, page_size: int, padding_bytes: int) -> EnvelopeLayout:
        """The layout, its page rounded up and then padded."""
        widest = max(part.dtype.itemsize for part in self.parts)
        page_bytes = _rounded_up(self.end, self.alignment or widest)
        page_bytes += require_count("padding_bytes", padding_bytes)
        return EnvelopeLayout(page_bytes, page_size, self.alignment or 1, tuple(self.parts))


def _layer_numbers(layers: Any) -> tuple[int, ...]:
    if isinstance(layers, Sequence) and not isinstance(layers, str | bytes):
        numbers = tuple(require_count("layers", layer) for layer in layers)
    else:
        numbers = tuple(range(require_count("layers", layers, minimum=1)))
    if not numbers or len(set(numbers)) != len(numbers):
        raise UsageError(f"layers: expected a count or distinct numbers, got {layers!r}")
    return numbers


def _shape(name: str, shape: Any) -> tuple[int, ...]:
    if not isinstance(shape, Sequence) or isinstance(shape, str | bytes) or not shape:
        raise UsageError(f"{name}: expected a shape, got {shape!r}")
    return tuple(require_count(name, length, minimum=1) for length in shape)


def _item_bytes(name: str, dtype: Any) -> int:
    if not isinstance(dtype, torch.dtype):
        raise UsageError(f"dtype of {name!r}: expected a torch.dtype, got {dtype!r}")
    return dtype.itemsize


def _group_counts(lengths: Sequence[int], dtype: Any, group: int | None) -> list[int]:
    """Scales for each of ``lengths`` elements, the last group possibly a part of one."""
    if group is None:
        return [1] * len(lengths)
    if dtype is None:
        raise UsageError(f"scale_group: {group}, but there is no scale_dtype")
    elements = require_count("scale_group", group, minimum=1)
    return [-(-length // elements) for length in lengths]


def _rounded_up(byte: int, multiple: int) -> int:
    return -(-byte // multiple) * multiple

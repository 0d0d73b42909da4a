"""Typed tensors over the page envelopes of a pool, without a copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .faults import UsageError
from .layouts import EnvelopeLayout, Part


def page_views(
    pages: torch.Tensor, page_size: int, layout: EnvelopeLayout, names: Sequence[str] | None
) -> dict[int, dict[str, torch.Tensor]]:
    """The parts of ``layout`` by layer and name: tensors [num_pages, *part.shape] over ``pages``.

    ``pages``: uint8 [num_pages, page_bytes], contiguous. ``page_size``: the pool's; ``names``: the
    parts wanted, None for all. Raises UsageError if the layout is not that of such pages, or if a
    part does not lie at multiples of its items, or of what the layout asks for.
    """
    if not isinstance(layout, EnvelopeLayout):
        raise UsageError(f"layout: expected an EnvelopeLayout, got {layout!r}")
    envelope = layout.page_bytes, layout.page_size
    if envelope != (pages.shape[1], page_size):
        raise UsageError(
            f"layout: pages of {envelope[0]} bytes and {envelope[1]} tokens, but the pool has "
            f"{pages.shape[1]} bytes and {page_size} tokens"
        )
    wanted = layout.names if names is None else _checked_names(names, layout)
    views: dict[int, dict[str, torch.Tensor]] = {layer: {} for layer in layout.layers}
    for part in layout.parts:
        if part.name in wanted:
            _check_alignment(part, layout, pages)
            views[part.layer][part.name] = _view(part, pages)
    return views


def _checked_names(names: Any, layout: EnvelopeLayout) -> Sequence[str]:
    if not isinstance(names, Sequence) or isinstance(names, str | bytes):
        raise UsageError(f"names: expected a list of names of parts, got {names!r}")
    for name in names:
        if name not in layout.names:
            raise UsageError(f"names: no part {name!r}, the parts are {layout.names}")
    return names


def _check_alignment(part: Part, layout: EnvelopeLayout, pages: torch.Tensor) -> None:
    """Refuse what a kernel could not read item by item, or that the layout rules out."""
    item_bytes = part.dtype.itemsize
    places = {
        "offset": part.offset,
        "page_bytes": layout.page_bytes,
        "the buffer's address": pages.data_ptr(),
        "the buffer's offset in its storage": pages.storage_offset(),
    }
    for what, byte in places.items():
        for multiple in (item_bytes, layout.alignment):
            if byte % multiple:
                raise UsageError(
                    f"layout: {part} asks for multiples of {multiple} bytes, but {what} is {byte}"
                )


def _view(part: Part, pages: torch.Tensor) -> torch.Tensor:
    item_bytes = part.dtype.itemsize
    whole_items = pages.view(-1).view(part.dtype)
    return whole_items.as_strided(
        (pages.shape[0], *part.shape),
        (pages.shape[1] // item_bytes, *(step // item_bytes for step in part.strides)),
        whole_items.storage_offset() + part.offset // item_bytes,
    )

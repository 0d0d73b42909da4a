"""Checks that read the device: what ``debug=True`` adds to a call."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from kvdefrag.kernels.launch import Words

from .arguments import check_host_ids
from .band import Band
from .faults import CorruptState, UsageError


def check_disjoint(band: Band, source_depths: Words, target_depths: Words) -> None:
    """Raise CorruptState, before anything moves, unless all pages of a move batch are distinct."""
    depths, counts = np.unique(np.concatenate((source_depths, target_depths)), return_counts=True)
    violations = [
        f"pool {band.spec.name!r}: page {band.geometry.page(depth)} is "
        f"{int((source_depths == depth).sum())} times a source and "
        f"{int((target_depths == depth).sum())} times a target of one move batch"
        for depth in depths[counts > 1].tolist()
    ]
    if violations:
        raise CorruptState(violations)


def check_bound_ids(band: Band, virtual_ids: torch.Tensor) -> None:
    """Raise UsageError, before anything changes, for an id that cannot be freed.

    Reads ``virtual_ids`` and the table back from the device.
    """
    host = _read(virtual_ids)
    check_host_ids("virtual_ids", host, band.ids.capacity)
    unbound = band.table.virtual_to_physical.cpu().numpy()[host] < 0
    if unbound.any():
        index = int(np.argmax(unbound))
        lacks = "is not allocated" if band.table.lender is None else "has no page here"
        raise UsageError(
            f"virtual_ids[{index}]: id {host[index]} of pool {band.spec.name!r} {lacks}"
        )


def host_pages(token_ids: torch.Tensor, page_size: int) -> list[int]:
    """The distinct virtual pages of tokens, read back, in the order of their first tokens."""
    return list(dict.fromkeys((_read(token_ids) // page_size).tolist()))


def with_pages(band: Band, virtual_pages: Sequence[int]) -> list[int]:
    """Those of ``virtual_pages`` that have a page in ``band``."""
    v2p = band.table.virtual_to_physical.cpu().numpy()
    return [page for page in virtual_pages if 1 <= page < v2p.size and v2p[page] != -1]


def check_lent(band: Band, virtual_ids: torch.Tensor) -> None:
    """Raise UsageError, before anything changes, for an id that ``bind`` would refuse."""
    host = _read(virtual_ids)
    check_host_ids("virtual_ids", host, band.ids.capacity)
    assert band.table.lender is not None
    is_lent = band.table.lender.virtual_to_physical.cpu().numpy()[host] != -1
    is_bound = band.table.virtual_to_physical.cpu().numpy()[host] != -1
    if not is_lent.all():
        index = int(is_lent.argmin())
        raise UsageError(
            f"virtual_ids[{index}]: id {host[index]} is not allocated in pool "
            f"{band.spec.ids_from!r}"
        )
    if is_bound.any():
        index = int(is_bound.argmax())
        raise UsageError(
            f"virtual_ids[{index}]: id {host[index]} has a page in pool {band.spec.name!r} already"
        )


def check_gaps(
    band: Band,
    name: str,
    token_ids: torch.Tensor,
    page_size: int,
    page_count: int,
    count_name: str = "page_count",
) -> None:
    """Raise UsageError unless ``page_count`` pages of the tokens, no more, are in ``band``."""
    tokens = _read(token_ids)
    limit = (band.ids.capacity + 1) * page_size
    outside = (tokens < -1) | (tokens >= limit)
    if outside.any():
        index = int(outside.argmax())
        raise UsageError(f"{name}[{index}]: expected -1 to {limit - 1}, got {tokens[index]}")
    found = len(with_pages(band, np.unique(tokens // page_size).tolist()))
    if found != page_count:
        raise UsageError(
            f"{count_name}: expected {found}, the pages of {name} in pool {band.spec.name!r}, "
            f"got {page_count}"
        )


def check_not_held(band: Band, name: str, virtual_pages: Sequence[int]) -> None:
    """Raise UsageError if any of ``virtual_pages`` has a page in ``band``, which borrows them."""
    held = with_pages(band, virtual_pages)
    if held:
        raise UsageError(
            f"{name}: id {held[0]} of pool {band.spec.ids_from!r} still has a page in "
            f"{band.spec.name!r}, which borrows it"
        )


def check_token_set(band: Band, token_ids: torch.Tensor, page_count: int) -> None:
    """Raise UsageError unless the tokens are of ``page_count`` distinct allocated pages."""
    tokens = _read(token_ids)
    _check_allocated(band, "token_ids", tokens, np.ones(tokens.size, np.bool_))
    found = np.unique(tokens // band.spec.page_size).size
    if found != page_count:
        raise UsageError(
            f"page_count: expected {found}, the pages of token_ids in pool {band.spec.name!r}, "
            f"got {page_count}"
        )


def check_token_run(band: Band, token_ids: torch.Tensor) -> None:
    """Raise UsageError unless the tokens are those of distinct allocated pages, in order."""
    tokens, page_size = _read(token_ids), band.spec.page_size
    _check_allocated(band, "token_ids", tokens, np.ones(tokens.size, np.bool_))
    place = np.arange(tokens.size) % page_size
    heads = tokens[::page_size].repeat(page_size)[: tokens.size]
    wrong = (tokens != heads + place) | (heads % page_size != 0)
    if wrong.any():
        index = int(wrong.argmax())
        raise UsageError(
            f"token_ids[{index}]: expected token {place[index]} of a page that starts the run or "
            f"follows one, got {tokens[index]}"
        )
    check_host_ids("token_ids: pages", tokens[::page_size] // page_size, band.ids.capacity)


def check_decode(band: Band, last_tokens: torch.Tensor, page_count: int) -> None:
    """Raise UsageError, before anything changes, for what ``decode`` would refuse."""
    last, page_size = _read(last_tokens), band.spec.page_size
    _check_allocated(band, "last_tokens", last, last != -1)
    _check_count("page_count", int(np.count_nonzero((last + 1) % page_size == 0)), page_count)


def check_extend(
    band: Band, batch: Sequence[torch.Tensor], page_count: int, token_count: int
) -> None:
    """Raise UsageError, before anything changes, for what ``extend`` would refuse."""
    prefix, new, last = (_read(each) for each in batch)
    page_size = band.spec.page_size
    wrong = (prefix < 0) | (prefix > new)
    if wrong.any():
        index = int(wrong.argmax())
        raise UsageError(
            f"prefix_lens[{index}]: expected 0 to new_lens[{index}], which is {new[index]}, "
            f"got {prefix[index]}"
        )
    reused = (prefix % page_size != 0) & (new > prefix)
    _check_allocated(band, "last_tokens", last, reused)
    misplaced = reused & (last % page_size != (prefix - 1) % page_size)
    if misplaced.any():
        index = int(misplaced.argmax())
        raise UsageError(
            f"last_tokens[{index}]: expected token {(prefix[index] - 1) % page_size} of its page, "
            f"where a prefix of {prefix[index]} ends, got {last[index]}"
        )
    pages = -(-new // page_size) + (-prefix // page_size)
    _check_count("page_count", int(pages.sum()), page_count)
    _check_count("token_count", int((new - prefix).sum()), token_count)


def _check_count(name: str, found: int, passed: int) -> None:
    if found != passed:
        raise UsageError(f"{name}: expected {found} for these lengths, got {passed}")


def _check_allocated(band: Band, name: str, tokens: Words, asked: npt.NDArray[np.bool_]) -> None:
    """Raise UsageError for a token that is ``asked`` for and not of an allocated page."""
    page_size = band.spec.page_size
    limit = (band.ids.capacity + 1) * page_size
    outside = asked & ((tokens < page_size) | (tokens >= limit))
    if outside.any():
        index = int(outside.argmax())
        raise UsageError(
            f"{name}[{index}]: expected {page_size} to {limit - 1}, got {tokens[index]}"
        )
    pages = np.where(asked, tokens // page_size, 0)
    unbound = asked & (band.table.virtual_to_physical.cpu().numpy()[pages] < 0)
    if unbound.any():
        index = int(unbound.argmax())
        raise UsageError(
            f"{name}[{index}]: token {tokens[index]} is of id {pages[index]} of pool "
            f"{band.spec.name!r}, which is not allocated"
        )


def _read(ids: torch.Tensor) -> Words:
    words: Words = ids.cpu().to(torch.int64).numpy()
    return words

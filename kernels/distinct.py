"""The host twins' way from tokens to pages: which pages they name, and each of them once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .host import unbind_good_host
from .launch import Mask, Words
from .record import (
    CORRUPT,
    ID_HELD,
    ID_NOT_BOUND,
    ID_OUT_OF_RANGE,
    TABLES_DISAGREE,
    TOKEN_OUT_OF_RANGE,
    USAGE,
    record_count_host,
    record_fault_host,
)
from .refuse import held_host


class TokenPages(NamedTuple):
    """The virtual page of every token.

    ``ids`` [tokens]: the page, or the token itself where that is none of the pool's (not
    ``in_range`` [tokens]). ``page_size`` and ``is_strict``, whether a gap is refused: of all
    tokens, or [tokens].
    """

    ids: Words
    in_range: Mask
    page_size: int | Words
    is_strict: bool | Mask


def pages_of_host(
    token_ids: npt.NDArray[np.integer], page_size: int, is_strict: bool, num_ids: int
) -> TokenPages:
    """The pages of tokens in a pool of ``page_size`` tokens a page."""
    token = token_ids.astype(np.int64)
    in_range = (token >= page_size) & (token < num_ids * page_size)
    ids = np.where(in_range, token // page_size, token)
    return TokenPages(ids, in_range, page_size, is_strict)


def unbind_set_host(
    v2p: Words,
    p2v: Words,
    named: TokenPages,
    pages: Words,
    freed: Words,
    record: Words,
    call_tag: int,
    holders: Words | None,
    borrowed: bool,
) -> None:
    """Unbind the distinct pages that are ``named`` into the slots ``pages`` and ``freed``.

    Where the ids are ``borrowed``, gaps and ids without a page here are passed over, or refused
    where they are strict.
    """
    ids, asked, outside = named.ids, named.in_range, ~named.in_range
    code: int | Words = TOKEN_OUT_OF_RANGE.value
    if borrowed:
        has_page = v2p[np.where(asked, ids, 0)] != -1
        asked = asked & (has_page | named.is_strict)
        is_gap = (ids >= -1) & (ids < named.page_size) & np.logical_not(named.is_strict)
        outside = outside & ~is_gap
        code = np.where(np.equal(named.page_size, 1), ID_OUT_OF_RANGE.value, code)
    rows = np.flatnonzero(asked)
    distinct, first = np.unique(ids[rows], return_index=True)
    first.sort()
    index = rows[first[: pages.size]]
    count = index.size
    freed[:count] = ids[index]
    freed[count:] = pages[count:] = -1
    is_clean = count > 0 and not outside.any()
    if not (is_clean and unbind_good_host(v2p, p2v, freed[:count], pages[:count], holders)):
        listed = np.zeros(ids.size, np.bool_)
        listed[index] = True
        found = unbind_listed_host(
            v2p, p2v, ids, index, listed, outside, code, record, call_tag, holders
        )
        pages[:count], freed[:count] = (each[index] for each in found)
    if distinct.size != pages.size:
        record_count_host(record, distinct.size, call_tag)


def unbind_listed_host(
    v2p: Words,
    p2v: Words,
    ids: Words,
    index: Words,
    asked: Mask,
    outside: Mask,
    code: int | Words,
    record: Words,
    call_tag: int,
    holders: Words | None,
) -> tuple[Words, Words]:
    """Unbind the distinct ``ids[index]``: pages and ids as long as ``ids``, -1 where refused.

    Recorded are ids ``outside`` the range, with their ``code``, and those ``asked`` for that are
    held or not bound, a second one of two equal ids among them.
    """
    is_held = held_host(holders, ids, asked)
    place = np.full(ids.size, -1)
    place[index] = np.where(is_held[index], -1, v2p[ids[index]])
    bound = place != -1
    page_ok = bound & (place >= 1) & (place < p2v.size)
    owner = np.where(page_ok, p2v[np.where(page_ok, place, 0)], -1)
    good = page_ok & (owner == ids)
    record_fault_host(
        record, CORRUPT.value, bound & ~good, call_tag,
        code=TABLES_DISAGREE.value, source=place, target=-1, virtual=ids,
    )  # fmt: skip
    refused = np.where(is_held, ID_HELD.value, ID_NOT_BOUND.value)
    record_fault_host(
        record, USAGE.value, outside | (asked & ~bound), call_tag,
        code=np.where(outside, code, refused), source=-1, target=-1, virtual=ids,
    )  # fmt: skip
    v2p[ids[good]] = -1
    p2v[place[good]] = -1
    return np.where(good, place, -1), np.where(good, ids, -1)

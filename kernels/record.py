"""The device fault record: what a kernel saw that the host could not know.

The record is one int64 tensor of ``RECORD_WORDS`` words with two slots of ``SLOT_WORDS``:

- ``USAGE``: the first id that a caller should not have passed. The lane is refused, work goes on.
- ``CORRUPT``: the first pair at which the page tables disagree. From then on ``bind``, ``unbind``,
  ``copy_pages`` and ``rebind`` do nothing, so that the evidence and the bytes stay as they are.

A slot's words: taken (0 or 1), code, call tag, index in the call, source page, target page,
virtual id. The lane that flips ``taken`` from 0 to 1 writes the rest: the first fault wins, and
only one lane ever writes. A word that does not apply holds -1. The index of ``COUNT_DIFFERS`` is
the number of pages that were found.

Word ``MIRROR`` is not a fault's: it holds the address of a second record, or 0. A fault is written
there too. With the address of pinned host memory, the host sees a fault without a copy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import triton.language as tl

from .launch import Words, jit

SLOT_WORDS = 8
RECORD_WORDS = 2 * SLOT_WORDS

# Constants that kernels read are constexprs; host code takes their ``.value``.
USAGE = tl.constexpr(0)
CORRUPT = tl.constexpr(SLOT_WORDS)
MIRROR = tl.constexpr(SLOT_WORDS - 1)

ID_OUT_OF_RANGE = tl.constexpr(1)
ID_NOT_BOUND = tl.constexpr(2)
PAGE_OUT_OF_RANGE = tl.constexpr(3)
PAGE_UNBOUND = tl.constexpr(4)
PAGE_TAKEN = tl.constexpr(5)
ID_TAKEN = tl.constexpr(6)
TABLES_DISAGREE = tl.constexpr(7)
ID_NOT_LENT = tl.constexpr(8)
ID_BOUND_HERE = tl.constexpr(9)
ID_HELD = tl.constexpr(10)
TOKEN_OUT_OF_RANGE = tl.constexpr(11)
TOKEN_OUT_OF_PLACE = tl.constexpr(12)
COUNT_DIFFERS = tl.constexpr(13)
LENGTHS_OUT_OF_ORDER = tl.constexpr(14)

FAULT_TEXT = {
    ID_OUT_OF_RANGE.value: "virtual id out of range",
    ID_NOT_BOUND.value: "virtual id not allocated, or without a page here: given back before, "
    "twice in one call, or never handed out",
    PAGE_OUT_OF_RANGE.value: "physical page id out of range",
    PAGE_UNBOUND.value: "physical page has no owner",
    PAGE_TAKEN.value: "physical page already has an owner",
    ID_TAKEN.value: "virtual id is already bound",
    TABLES_DISAGREE.value: "v2p and p2v disagree",
    ID_NOT_LENT.value: "virtual id not allocated in the pool that it is borrowed from",
    ID_BOUND_HERE.value: "virtual id has a page here already, or is there twice in one call",
    ID_HELD.value: "virtual id still has a page in a pool that borrows it",
    TOKEN_OUT_OF_RANGE.value: "token id out of range",
    TOKEN_OUT_OF_PLACE.value: "token is not where in its page it has to be",
    COUNT_DIFFERS.value: "page_count or token_count is not what the arguments come to",
    LENGTHS_OUT_OF_ORDER.value: "a prefix is negative, too long, or longer than the new length",
}
"""What each code means, for error messages."""

ARGUMENT = {
    TOKEN_OUT_OF_RANGE.value: "token_ids",
    TOKEN_OUT_OF_PLACE.value: "token_ids",
    COUNT_DIFFERS.value: "page_count",
    LENGTHS_OUT_OF_ORDER.value: "prefix_lens",
}
"""The argument that a refused id stands in, where that is not ``virtual_ids``."""

NAMES_TOKEN = {TOKEN_OUT_OF_RANGE.value, TOKEN_OUT_OF_PLACE.value}
"""Codes whose ``virtual id`` is a token id."""


@jit()
def _stopped(record):
    return tl.load(record + CORRUPT)


@jit()
def _record_fault(
    record, SLOT: tl.constexpr, bad, code, call_tag, index, source, target, virtual
):  # fmt: skip
    zero = index * 0
    taken = tl.atomic_xchg(record + SLOT + zero, zero + 1, mask=bad)
    first = bad & (taken == 0)
    _write_fault(record + SLOT, first, code, call_tag, index, source, target, virtual)
    mirror = tl.load(record + MIRROR + zero, mask=first, other=0)
    # The load is masked: a lane that has no fault, or no mirror, has no address.
    mirrored = first & (mirror != 0)
    slot = mirror.to(tl.pointer_type(tl.int64)) + SLOT
    _write_fault(slot, mirrored, code, call_tag, index, source, target, virtual)
    tl.store(slot, zero + 1, mask=mirrored)


@jit()
def _write_fault(slot, first, code, call_tag, index, source, target, virtual):
    zero = index * 0
    tl.store(slot + 1 + zero, zero + code, mask=first)
    tl.store(slot + 2 + zero, zero + call_tag, mask=first)
    tl.store(slot + 3 + zero, index, mask=first)
    tl.store(slot + 4 + zero, zero + source, mask=first)
    tl.store(slot + 5 + zero, zero + target, mask=first)
    tl.store(slot + 6 + zero, zero + virtual, mask=first)


def is_stopped_host(record: Words) -> bool:
    """Whether a corrupt state has been recorded."""
    return bool(record[CORRUPT.value])


def record_fault_host(
    record: Words,
    slot: int,
    bad: npt.NDArray[np.bool_],
    call_tag: int,
    **words: Any,
) -> None:
    """Write the first lane of ``bad`` into ``slot`` unless the slot is taken.

    ``words``: ``code``, ``source``, ``target`` and ``virtual``, each a scalar or an array [lanes].
    """
    if record[slot] or not bad.any():
        return
    index = int(bad.argmax())

    def word(name: str) -> int:
        return int(np.broadcast_to(words[name], bad.shape)[index])

    record[slot : slot + 7] = (
        1,
        word("code"),
        call_tag,
        index,
        word("source"),
        word("target"),
        word("virtual"),
    )


def record_count_host(record: Words, found: int, call_tag: int) -> None:
    """Write into slot ``USAGE``, unless it is taken, that ``found`` pages are not those passed."""
    if not record[USAGE.value]:
        record[:7] = (1, COUNT_DIFFERS.value, call_tag, found, -1, -1, -1)

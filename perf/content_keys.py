"""64-bit keys that say what a page must hold.

A page of a shared block has a key of its block hash and its place in the block, so that a prefix
hit is compared with what the trace says must be there. Private pages and states have keys of
serial numbers that are used once. The key of a page in the window's pool is that of the page of the
same tokens in the full pool, in another domain. Two equal keys are as likely as two equal random
64-bit numbers.
"""

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Keys = NDArray[np.uint64]

PAGE_KEY_STEP = np.uint64(0xBF58476D1CE4E5B9)

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_FINAL_MULTIPLIER = np.uint64(0xD6E8FEB86659FD93)
_HALF_BITS = np.uint64(32)
_ALL_BITS = 2**64 - 1
_PRIVATE_DOMAIN = 0x5851F42D4C957F2D
_STATE_DOMAIN = 0x14057B7EF767814F
_WINDOW_DOMAIN = np.uint64(0xD1342543DE82EF95)


def mix64(values: Keys) -> Keys:
    """Scatter uint64 values of any shape over all bits, one to one."""
    mixed = values * _MULTIPLIER
    mixed ^= mixed >> _HALF_BITS
    mixed *= _FINAL_MULTIPLIER
    mixed ^= mixed >> _HALF_BITS
    return mixed


def mix64_int(value: int) -> int:
    """`mix64` of one number: an array of one costs ten times as much."""
    mixed = value * int(_MULTIPLIER) & _ALL_BITS
    mixed ^= mixed >> 32
    mixed = mixed * int(_FINAL_MULTIPLIER) & _ALL_BITS
    return mixed ^ mixed >> 32


def block_keys(block_hashes: list[int], block_pages: int) -> Keys:
    """Give the keys of all pages of some blocks: shape `[len(block_hashes) * block_pages]`.

    Those of one block are `PAGE_KEY_STEP` apart (modulo 2**64).
    """
    hashes = mix64(np.array(block_hashes, dtype=np.uint64))
    steps = np.arange(block_pages, dtype=np.uint64) * PAGE_KEY_STEP
    return (hashes[:, None] + steps).reshape(-1)


def private_keys(serial: int, first: int, page_count: int) -> Keys:
    """Give the keys of a request's private pages `first` to `first + page_count - 1`.

    They are `PAGE_KEY_STEP` apart (modulo 2**64), so that a step adds pages with one addition.
    """
    start = np.uint64(mix64_int(serial ^ _PRIVATE_DOMAIN))
    return start + np.arange(first, first + page_count, dtype=np.uint64) * PAGE_KEY_STEP


def state_keys(serials: list[int]) -> Keys:
    """Give the keys of state slots from their serials."""
    return np.array([mix64_int(serial ^ _STATE_DOMAIN) for serial in serials], dtype=np.uint64)


def window_keys(keys: Keys) -> Keys:
    """Give the keys of pages in the window pool from those of the same tokens in the full pool."""
    return keys ^ _WINDOW_DOMAIN

"""The plugin of SGLang: its unified memory pool compacts with our planner and kernels.

SGLang loads ``register`` in every process, through the entry-point group ``sglang.srt.plugins``. It
does nothing unless the environment has ``KVDEFRAG_SGLANG=1``, and nothing to a version of SGLang
that it was not checked against, since the names that it hooks are private.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .sglang_flush import commit, flush, launched
from .sglang_pool import EnginePool, Envelopes

SWITCH = "KVDEFRAG_SGLANG"
"""The plugin is on where this environment variable is "1"."""

CHECKED_VERSIONS = ("0.5.23",)
"""Versions of SGLang that the differential tests have run with."""

ALLOCATOR = "sglang.srt.mem_cache.allocator.unified_sub_pool.MultiEndedAllocator"

BACKEND = "auto"
"""As in ``choose_backend``."""

logger = logging.getLogger(__name__)

_envelope_copies: list[Any] = []


def register() -> None:
    """Register the hooks with SGLang, or say in one log line why not."""
    if os.environ.get(SWITCH) != "1":
        logger.info("kvdefrag is off: %s=1 switches it on", SWITCH)
        return
    from sglang.version import __version__ as version

    if version not in CHECKED_VERSIONS:
        logger.warning(
            "kvdefrag refused: checked with SGLang %s, found %s; SGLang compacts on its own",
            ", ".join(CHECKED_VERSIONS),
            version,
        )
        return
    from sglang.srt.mem_cache.unified_memory_pool import (
        UnifiedMHATokenToKVPool,
        UnifiedMLATokenToKVPool,
    )
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    # Taken before any hook is applied: a copy that another plugin has wrapped is called, not ours.
    _envelope_copies[:] = [
        pool.move_physical_pages for pool in (UnifiedMHATokenToKVPool, UnifiedMLATokenToKVPool)
    ]
    for name, hook in HOOKS.items():
        HookRegistry.register(f"{ALLOCATOR}.{name}", hook, HookType.AROUND)
    logger.info("kvdefrag is on: it compacts the unified memory pool of SGLang %s", version)


def _around_flush(original: Callable[..., int], allocator: Any, *, urgent: bool) -> int:
    pool = _pool_of(allocator)
    if pool is None or allocator.moves_blocked():
        return original(allocator, urgent=urgent)
    return flush(pool, allocator, urgent)


def _around_commit(
    original: Callable[..., None],
    allocator: Any,
    srcs: Sequence[int],
    dsts: Sequence[int],
    latest_event: Any,
    released_fired: list[torch.Tensor],
) -> None:
    pool = _pool_of(allocator)
    if pool is None or not srcs or allocator.moves_blocked():
        original(allocator, srcs, dsts, latest_event, released_fired)
    else:
        commit(pool, allocator, srcs, dsts, latest_event, released_fired)


def _around_launch(
    original: Callable[..., None],
    allocator: Any,
    forward_done: Any,
    out_cache_loc_virtual: torch.Tensor | None,
) -> None:
    original(allocator, forward_done, out_cache_loc_virtual)
    if (pool := _pool_of(allocator)) is not None:
        launched(pool, allocator)


def _around_prewarm(original: Callable[..., None], allocator: Any) -> None:
    original(allocator)
    pool = _pool_of(allocator)
    if pool is not None and pool.device.type == "cuda":
        pool.prewarm()
        torch.cuda.current_stream().synchronize()


HOOKS: dict[str, Callable[..., Any]] = {
    "_flush": _around_flush,
    "_commit_move_batch": _around_commit,
    "set_inflight_forward": _around_launch,
    "prewarm_compaction": _around_prewarm,
}
"""What goes around which method of ``ALLOCATOR``."""


def _pool_of(allocator: Any) -> EnginePool | None:
    """What is kept beside ``allocator``; None where SGLang's own code is left to it."""
    try:
        pool: EnginePool | None = allocator._kvdefrag_pool
    except AttributeError:
        pass
    else:
        if pool is None or pool.serves(allocator):
            return pool
    pool = _adopt(allocator)
    allocator._kvdefrag_pool = pool
    return pool


def _adopt(allocator: Any) -> EnginePool | None:
    """A new pool for ``allocator``, unless it floats, is eager or on another kind of device."""
    device = allocator.virtual_to_physical.device
    floats = allocator.grow_direction == "float"
    if floats or not allocator.lazy_compaction or device.type not in ("cpu", "cuda"):
        return None
    try:
        return EnginePool(allocator, _envelopes(allocator._kvcache), BACKEND)
    except ValueError as error:
        logger.warning("kvdefrag leaves pool %r to SGLang: %s", allocator.sub_pool_name, error)
        return None


def _envelopes(kvcache: Any) -> Envelopes | None:
    """The bytes behind ``kvcache``, where its own copy does no more than copy envelopes."""
    if getattr(type(kvcache), "move_physical_pages", None) not in _envelope_copies:
        return None
    return Envelopes(kvcache._unified_buffer._raw, kvcache._page_bytes)

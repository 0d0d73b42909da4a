"""The calls of a pool that speak in tokens: token ``t`` is of virtual page ``t // page_size``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from kvdefrag.kernels.marks import MAX_MARKED
from kvdefrag.kernels.take import Take
from kvdefrag.kernels.translate import MAX_INT32

from .arguments import ID_DTYPES
from .band import more_than_live, no_own_ids
from .borrowing import cascaded, check_cascade, release_first
from .debug import check_decode, check_extend, check_token_run, check_token_set
from .faults import UsageError
from .geometry import require_count
from .grant import ensure_room, hand_out
from .groups import unbind_run, unbind_tokens
from .pool_calls import PoolCalls


class TokenCalls(PoolCalls):
    """What ``MultiEndedAllocator`` offers to an engine that counts in tokens.

    Token ``t`` is token ``t % page_size`` of virtual page ``t // page_size``. Each call knows on
    the host how many pages it takes or gives: where its arguments do not say, ``page_count`` does.
    The device checks that; a difference is a UsageError at the next flush that finds holes or at
    ``arena.check()``, with ``debug=True`` in the call, before anything has changed.
    """

    __slots__ = ()

    def alloc_tokens(self, token_count: int) -> torch.Tensor:
        """Hand out the pages of ``token_count`` tokens: int64 token ids [token_count].

        ``alloc`` of as many pages as that takes, with all tokens of a page in order; the last page
        may be used in part. Free them with ``free_token_run``.
        """
        band, shared = self._band, self._shared
        count = require_count("token_count", token_count)
        _require_int32("token_count", count)
        page_size = band.spec.page_size
        page_count = -(-count // page_size)
        ensure_room(shared, band, page_count, "alloc_tokens")
        if count == 0:
            return torch.empty(0, dtype=torch.int64, device=shared.device)
        table = band.table

        def launch(take: Take, call_tag: int) -> torch.Tensor:
            return shared.backend.bind_tokens(
                table.v2p, table.p2v, band.holes.buffer, band.ids.buffer, shared.record.words,
                take, count, page_size, call_tag,
            )  # fmt: skip

        return hand_out(shared, band, page_count, "alloc_tokens", launch)

    def extend(
        self, prefix_lens: Any, new_lens: Any, last_tokens: Any, page_count: int, token_count: int
    ) -> torch.Tensor:
        """Let a batch of sequences grow: the new tokens' ids, int64 [token_count], in one launch.

        Sequence ``i`` grows from ``prefix_lens[i]`` to ``new_lens[i]`` tokens; ``last_tokens[i]``
        is the last token of its prefix (anything, such as -1, where that is empty). If the prefix
        ends inside a page, that page goes on; fresh pages follow. All three int32 or all int64
        [batch] on the device, any stride. The result has the new tokens of sequence 0 in order,
        then those of sequence 1 and so on. ``page_count``: fresh pages, the sum of
        ``ceil(new / page_size) - ceil(prefix / page_size)``. ``token_count``: the sum of ``new -
        prefix``. Raises OutOfPages with nothing changed. A sequence that the device refuses gets
        0, the sink, for its tokens.
        """
        band, shared = self._band, self._shared
        count = require_count("page_count", page_count)
        tokens = require_count("token_count", token_count)
        _require_int32("token_count", tokens)
        names = ("prefix_lens", "new_lens", "last_tokens")
        given = (prefix_lens, new_lens, last_tokens)
        batch = [self._ids(each, name) for name, each in zip(names, given, strict=True)]
        for name, ids in zip(names, batch, strict=True):
            if ids.dtype != batch[0].dtype or ids.numel() != batch[0].numel():
                raise UsageError(
                    f"{name}: expected {batch[0].numel()} of {batch[0].dtype} as in prefix_lens, "
                    f"got {ids.numel()} of {ids.dtype}"
                )
        page_size = band.spec.page_size
        if count > tokens or (not batch[0].numel() and tokens):
            raise UsageError(
                f"page_count: {tokens} tokens of {batch[0].numel()} sequences "
                f"cannot take {count} fresh pages"
            )
        if shared.debug:
            check_extend(band, batch, count, tokens)
        ensure_room(shared, band, count, "extend")
        if tokens == 0:
            return torch.empty(0, dtype=torch.int64, device=shared.device)
        operands = [shared.backend.operand(ids) for ids in batch]
        table = band.table

        def launch(take: Take, call_tag: int) -> torch.Tensor:
            return shared.backend.extend(
                table.v2p, table.p2v, *operands, tokens, page_size,
                band.holes.buffer, band.ids.buffer, shared.record.words, take, call_tag,
            )  # fmt: skip

        return hand_out(shared, band, count, "extend", launch)

    def decode(self, last_tokens: Any, page_count: int) -> torch.Tensor:
        """One more token for every sequence: their ids, int64 [batch], in one launch.

        ``last_tokens``: int32 or int64 [batch] on the device, any stride: the last token of each
        sequence, -1 for one that has none yet. Its page goes on, or a fresh one follows where it
        was full. ``page_count``: how many sequences need a fresh page, which are those whose length
        is a multiple of ``page_size``. Raises OutOfPages with nothing changed. A sequence that the
        device refuses gets 0, the sink.
        """
        band, shared = self._band, self._shared
        count = require_count("page_count", page_count)
        ids = self._ids(last_tokens, "last_tokens")
        if count > ids.numel():
            raise UsageError(f"page_count: {ids.numel()} sequences cannot take {count} fresh pages")
        if shared.debug:
            check_decode(band, ids, count)
        ensure_room(shared, band, count, "decode")
        if not ids.numel():
            return torch.empty(0, dtype=torch.int64, device=shared.device)
        table, last = band.table, shared.backend.operand(ids)

        def launch(take: Take, call_tag: int) -> torch.Tensor:
            return shared.backend.decode(
                table.v2p, table.p2v, last, band.spec.page_size,
                band.holes.buffer, band.ids.buffer, shared.record.words, take, call_tag,
            )  # fmt: skip

        return hand_out(shared, band, count, "decode", launch)

    def free_tokens(
        self, token_ids: Any, page_count: int, cascade: Mapping[str, int] | None = None
    ) -> None:
        """Give back the ``page_count`` distinct pages of ``token_ids``, each once, in one launch.

        int32 or int64 [tokens] on the device, any stride and order, any number of tokens of a page:
        one is enough to free it all. No copy, no wait. A page that is not allocated, a token out of
        range and another number of pages are refused on the device. Pages beyond ``page_count``
        stay allocated. ``cascade``: as in ``free``.
        """
        band, shared = self._band, self._shared
        shared.record.raise_if_stopped()
        if band.table.lender is not None:
            raise no_own_ids(band, "free_tokens")
        count = require_count("page_count", page_count)
        ids = self._ids(token_ids, "token_ids")
        token_count = ids.numel()
        _require_int32("token_ids", token_count)
        if not min(1, token_count) <= count <= token_count:
            raise UsageError(f"page_count: {token_count} tokens cannot be of {count} pages")
        if shared.debug:
            check_token_set(band, ids, count)
        self._freed(ids, count, cascade, whole=False)
        if shared.groups:
            shared.groups[0].add(band, ids, band.spec.page_size, count, whole=False)
        elif count:
            unbind_tokens(shared, band, ids, band.spec.page_size, count)

    def free_token_run(self, token_ids: Any, cascade: Mapping[str, int] | None = None) -> None:
        """Give back the pages of a run of whole pages, in one launch: no look for duplicates.

        ``token_ids``: int32 or int64 [tokens] on the device, any stride: all tokens of a page in
        order, then those of the next and so on; the last page may be cut short. Only the first
        token of each page is read, and refused if it does not start one. ``cascade``: as in
        ``free``.
        """
        band, shared = self._band, self._shared
        shared.record.raise_if_stopped()
        if band.table.lender is not None:
            raise no_own_ids(band, "free_token_run")
        ids = self._ids(token_ids, "token_ids")
        page_size = band.spec.page_size
        count = -(-ids.numel() // page_size)
        if shared.debug:
            check_token_run(band, ids)
        self._freed(ids[::page_size], count, cascade, whole=True)
        if shared.groups:
            shared.groups[0].add(band, ids[::page_size], page_size, count, whole=True)
        elif count:
            unbind_run(shared, band, ids, count)

    def _freed(self, ids: torch.Tensor, page_count: int, cascade: Any, whole: bool) -> None:
        """Check a free by tokens, and let the borrowers named in ``cascade`` go first."""
        band, shared = self._band, self._shared
        page_size = band.spec.page_size
        releases = cascaded(shared, band, cascade, page_count) if cascade is not None else ()
        if shared.debug:
            check_cascade(shared, band, "token_ids", ids, page_size, releases, whole)
        if page_count > band.live:
            raise more_than_live(band, "token_ids", page_count)
        shared.counters.free_calls += 1
        if releases:
            release_first(shared, ids, page_size, releases)

    def translate_tokens(
        self, token_ids: Any, out: torch.Tensor | None = None, out_width: int | None = None
    ) -> torch.Tensor:
        """Physical token ids of ``token_ids``: int32 or int64 [tokens] or [rows, tokens].

        Any strides. A token of a page that is unbound, negative or out of range gives 0, in the
        sink. Written to ``out`` (int32 or int64, any strides) if given, else to a new int64 tensor:
        as large as ``token_ids``, or with ``out_width`` that many elements in a row, of which those
        past the tokens become 0. One launch; with ``out`` nothing is allocated, so that a CUDA
        graph can capture it. Raises UsageError for an ``out`` of another shape, dtype or device,
        and for an int32 one where ``num_pages * page_size > 2**31 - 1``.
        """
        shared, band = self._shared, self._band
        ids = self._ids(token_ids, "token_ids", most_dimensions=2)
        width = ids.shape[-1]
        if out_width is not None:
            width = require_count("out_width", out_width, minimum=width)
        shape = (*ids.shape[:-1], width)
        if out is None:
            out = torch.empty(shape, dtype=torch.int64, device=shared.device)
        else:
            self._check_out(out, shape)
        if out.numel():
            backend = shared.backend
            backend.translate_tokens(
                band.table.v2p, backend.operand(ids), backend.operand(out),
                band.geometry.num_pages, band.spec.page_size,
            )  # fmt: skip
        return out

    def _check_out(self, out: Any, shape: tuple[int, ...]) -> None:
        token_limit = self._band.geometry.num_pages * self._band.spec.page_size
        device = self._shared.device
        if not isinstance(out, torch.Tensor) or out.dtype not in ID_DTYPES:
            raise UsageError(f"out: expected an int64 or int32 tensor, got {out!r}")
        if out.layout is not torch.strided or any(
            stride == 0 and size > 1 for stride, size in zip(out.stride(), out.shape, strict=True)
        ):
            raise UsageError(f"out: expected one place a token, got {out!r}")
        if out.device != device or out.shape != shape:
            raise UsageError(
                f"out: expected {list(shape)} on {device}, got {list(out.shape)} on {out.device}"
            )
        if out.dtype == torch.int32 and token_limit > MAX_INT32:
            raise UsageError(f"out: int32 cannot hold {token_limit} token ids, got {out.dtype}")


def _require_int32(name: str, token_count: int) -> None:
    if token_count > MAX_MARKED:
        raise UsageError(f"{name}: at most {MAX_MARKED} tokens in one call, got {token_count}")

"""The one device-to-host copy of a flush."""

from __future__ import annotations

from collections.abc import Sequence

from kvdefrag.kernels.backend import Backend, Operand
from kvdefrag.kernels.launch import Words
from kvdefrag.kernels.record import RECORD_WORDS
from kvdefrag.kernels.staging import Staging

from .faults import FaultRecord


class SnapshotReader:
    """Reads lists of ids and the fault record together, through one staging buffer.

    The buffer is made up front for the holes of all pools; only page sets of hazards that do not
    fit beside them make it grow.
    """

    __slots__ = ("_backend", "_record", "_staging")

    def __init__(self, backend: Backend, record: FaultRecord, page_count: int) -> None:
        self._backend = backend
        self._record = record
        self._staging: Staging = backend.staging(RECORD_WORDS + page_count)

    def read(self, parts: Sequence[Operand], counts: Sequence[int]) -> tuple[Words, list[Words]]:
        """One launch, one copy, one wait, whatever the number of ``parts`` and their ``counts``.

        ``parts``: int64 on the device, in words. Returns the fault record, int64 [16], and what the
        parts hold. All lies in the staging buffer: good until the next snapshot.
        """
        word_count = RECORD_WORDS + sum(counts)
        if word_count > self._staging.host.size:
            self._staging = self._backend.staging(2 * word_count)
        words = self._backend.read_back([self._record.words, *parts], self._staging)
        found = []
        start = RECORD_WORDS
        for count in counts:
            found.append(words[start : start + count])
            start += count
        return words[:RECORD_WORDS], found

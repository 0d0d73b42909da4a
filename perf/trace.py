"""Request traces in the Mooncake JSON-lines format, one object a line.

The format was published with the Mooncake paper (FAST'25, github.com/kvcache-ai/Mooncake):
`timestamp` (ms from the start), `input_length` and `output_length` (tokens) and `hash_ids`, one id
for each block of 512 prompt tokens, the last of which may be partial. Prompts whose lists begin
with the same ids share that prefix.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

MAX_TOKENS = 10_000_000
"""More tokens than any model takes in one request."""
BLOCK_TOKENS = 512
"""Tokens of the prompt that one hash id stands for."""


class TraceError(ValueError):
    """A trace that cannot be read; the message names the file, the line and the field."""


class Request(NamedTuple):
    """One request of a trace.

    `timestamp_ms` is the arrival in milliseconds from the start of the trace; `input_tokens` and
    `output_tokens` are at least 1; `block_hashes` has one id for each 512 tokens of the prompt,
    rounded up.
    """

    timestamp_ms: float
    input_tokens: int
    output_tokens: int
    block_hashes: tuple[int, ...]

    @property
    def full_blocks(self) -> int:
        """Blocks of the prompt that are complete, and can therefore be shared."""
        return self.input_tokens // BLOCK_TOKENS


def read_trace(path: Path, limit: int | None = None) -> list[Request]:
    """Read a trace, sorted by arrival; requests of one millisecond keep the file's order.

    `limit` stops after so many requests. Empty lines are skipped. Raises `TraceError` for a file
    that is missing or empty, and for the first line that does not follow the format.
    """
    requests: list[Request] = []
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if limit is not None and len(requests) == limit:
                    break
                if line.strip():
                    requests.append(_parse_line(line, f"{path}, line {number}"))
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{path} cannot be read: {error}") from error
    if not requests:
        raise TraceError(f"{path} holds no request")
    return sorted(requests, key=lambda request: request.timestamp_ms)


def _parse_line(line: str, where: str) -> Request:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise TraceError(f"{where} is not JSON: {error.msg} at column {error.colno}") from error
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{where} is not usable JSON: {error}") from error
    if not isinstance(record, dict):
        raise TraceError(f"{where} must be an object, not {line.strip()[:40]}")
    timestamp_ms = _field(record, "timestamp", where)
    if type(timestamp_ms) not in (int, float) or not 0 <= timestamp_ms < float("inf"):
        raise TraceError(f"{where}: timestamp must be milliseconds from 0 on, not {timestamp_ms!r}")
    input_tokens = _token_count(record, "input_length", where)
    output_tokens = _token_count(record, "output_length", where)
    block_hashes = _block_hashes(record, input_tokens, where)
    return Request(timestamp_ms, input_tokens, output_tokens, block_hashes)


def _field(record: dict[str, Any], name: str, where: str) -> Any:
    if name not in record:
        raise TraceError(f"{where}: {name} is missing")
    return record[name]


def _token_count(record: dict[str, Any], name: str, where: str) -> int:
    value = _field(record, name, where)
    if type(value) is not int or not 1 <= value <= MAX_TOKENS:
        raise TraceError(
            f"{where}: {name} must be a number of tokens from 1 on, at most {MAX_TOKENS}, "
            f"not {value!r}"
        )
    return value


def _block_hashes(record: dict[str, Any], input_tokens: int, where: str) -> tuple[int, ...]:
    values = _field(record, "hash_ids", where)
    if type(values) is not list:
        raise TraceError(f"{where}: hash_ids must be a list, not {values!r}")
    for position, value in enumerate(values):
        if type(value) is not int or not 0 <= value < 1 << 64:
            raise TraceError(
                f"{where}: hash_ids[{position}] must be an integer from 0 to 2**64 - 1, "
                f"not {value!r}"
            )
    blocks = -(-input_tokens // BLOCK_TOKENS)
    if len(values) != blocks:
        raise TraceError(
            f"{where}: hash_ids must have {blocks} ids for input_length {input_tokens}, "
            f"not {len(values)}"
        )
    return tuple(values)

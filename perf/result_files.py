"""Result files: told apart by what they hold, and checked against a schema when they are read."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

RECORD, COMPARISON, REPLAY = "benchmark record", "comparison", "replay"
GPU_CHECK, LIMITS = "GPU check", "limits"

MARKS = (
    (RECORD, {"benchmarks", "machine_info"}),
    (COMPARISON, {"comparison"}),
    (GPU_CHECK, {"format", "figures"}),
    (LIMITS, {"computed_not_measured"}),
    (REPLAY, {"settings", "host_time"}),
)
"""Keys by which a kind of file is known."""

MESSAGE_CHARACTERS = 160


class ResultError(ValueError):
    """A file that is no result of ours, or one with a part missing."""


class UnknownKind(ResultError):
    """JSON that is none of the kinds that are read here."""


class ResultFile(NamedTuple):
    """``data`` fits the schema of its ``kind``."""

    kind: str
    name: str
    data: dict[str, Any]


def read_result(path: Path) -> ResultFile:
    """Read one file; raises ``ResultError`` with its name and what is wrong."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except (OSError, ValueError, RecursionError) as error:
        raise ResultError(f"{path.name}: {error}") from error
    kind = _kind_of(data)
    if kind is None:
        raise UnknownKind(
            f"{path.name}: neither a benchmark record nor the JSON of replay, limits or gpu-check"
        )
    finding = schema_finding("result_schemas.json", kind, data)
    if finding:
        raise ResultError(f"{path.name}: not a {kind} as expected: {finding}")
    return ResultFile(kind, path.name, data)


def schema_finding(schema_file: str, name: str, data: Any) -> str:
    """Where ``data`` departs from a schema; "" if it fits."""
    error = best_match(_validator(schema_file, name).iter_errors(data))
    if error is None:
        return ""
    message = error.message
    if len(message) > MESSAGE_CHARACTERS:
        message = f"{message[:MESSAGE_CHARACTERS]}..."
    return f"{error.json_path}: {message}"


@cache
def _validator(schema_file: str, name: str) -> Draft202012Validator:
    schemas = json.loads(Path(__file__).with_name(schema_file).read_text(encoding="utf-8"))
    return Draft202012Validator({**schemas, "$ref": f"#/$defs/{name.replace(' ', '%20')}"})


def _kind_of(data: Any) -> str | None:
    if isinstance(data, dict):
        for kind, keys in MARKS:
            if keys <= data.keys():
                return kind
    return None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")

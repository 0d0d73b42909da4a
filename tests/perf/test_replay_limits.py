"""Options and traces out of all bounds: exit status 2 and a sentence, never a traceback."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvdefrag.perf.__main__ import main

GOOD = {"timestamp": 1, "input_length": 100, "output_length": 5, "hash_ids": [0]}


@pytest.mark.parametrize(
    "option",
    ["--pool-gib=inf", "--pool-gib=1e300", f"--running={10**23}", "--page-scale=1e-999999999"],
)
def test_option(option: str) -> None:
    result = CliRunner().invoke(main, ["replay", "--limit=1", option])
    assert result.exit_code == 2, result.output
    assert option.split("=")[0] in result.output


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[" * 200_000, "line 1 is not usable JSON"),
        ('{"timestamp": 1' + "0" * 5000 + "}", "line 1 is not usable JSON"),
        (json.dumps({**GOOD, "output_length": 10**15}), "output_length must be"),
    ],
)
def test_trace(tmp_path: Path, line: str, message: str) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(line + "\n")
    result = CliRunner().invoke(main, ["replay", "--trace", str(trace)])
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.output.split())

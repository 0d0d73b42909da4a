"""What the README shows must run: its example, its commands and its make targets."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).resolve().parent.parent / "README.md").read_text()
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", README, re.DOTALL)
COMMANDS = [
    line.split("#")[0].strip()
    for language, block in BLOCKS
    if not language
    for line in block.splitlines()
    if line.startswith(("make ", "python "))
]
CALLS = [command for command in COMMANDS if command.startswith("python ")]
TARGETS = [command.split()[1] for command in COMMANDS if command.startswith("make ")]


def test_commands_are_found() -> None:
    assert len(CALLS) >= 4
    assert {"demo", "test"} <= set(TARGETS)


def test_examples_run(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {}
    for language, block in BLOCKS:
        if language == "python":
            exec(compile(block, "README.md", "exec"), names)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("FlushResult(moves=4, bytes_moved=262144, absorbed=0")
    assert printed[1] == "True 4"
    assert printed[2:] == [
        "FlushResult(moves=1, bytes_moved=65536, absorbed=0, pending=1, stopped_by='')",
        "blocked",
    ]


@pytest.mark.parametrize("target", TARGETS)
def test_target_exists_and_is_run_by_ci(target: str, project_root: Path) -> None:
    assert re.search(rf"^{target}:", (project_root / "Makefile").read_text(), re.MULTILINE)
    (run_by_ci,) = re.findall(r"for target in (.*); do", (project_root / ".ci" / "run").read_text())
    assert target in run_by_ci.split()


@pytest.mark.parametrize("command", CALLS)
def test_command_runs(command: str, tmp_path: Path) -> None:
    requests = (
        {"timestamp": 10 * i, "input_length": 1500, "output_length": 8, "hash_ids": [0, 1, 2 + i]}
        for i in range(20)
    )
    trace = tmp_path / "conversation.jsonl"
    trace.write_text("".join(json.dumps(request) + "\n" for request in requests))
    done = subprocess.run(
        [sys.executable, *command.split()[1:]],
        cwd=tmp_path,
        env={**os.environ, "TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    if "--json" in command:
        assert json.loads((tmp_path / "replay.json").read_text())

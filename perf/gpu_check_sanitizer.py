"""A short correctness run under compute-sanitizer, where that is installed."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from .gpu_check_borrow_twins import check_borrow_twins
from .gpu_check_copies import check_copies
from .gpu_check_faults import check_faults
from .gpu_check_growth_twins import check_growth_twins
from .gpu_check_lockstep_tokens import check_lockstep
from .gpu_check_report import Report, require, without_folders
from .gpu_check_sizes import INTERPRETED, ON_A_GPU
from .gpu_check_token_twins import check_token_twins
from .gpu_check_twins import check_twins

TOOL = "compute-sanitizer"
NAME = f"{TOOL} memcheck"
SECONDS_MOST = 150.0
SECONDS_LEAST = 40.0

CLEAN = "ERROR SUMMARY: 0 errors"


def run_part(device: torch.device) -> Report:
    """What runs under the tool: everything that writes memory, a little of each."""
    report = Report({}, SECONDS_MOST)
    sizes = INTERPRETED
    if device.type == "cuda":
        sizes = replace(
            ON_A_GPU,
            lockstep_steps=60,
            id_counts=(1, 129),
            token_counts=(129, 2049),
            grown_counts=(129,),
            zeroed_counts=(7, 129),
            offsets=(0, 1),
            many_moves=500,
        )
    check_lockstep(device, sizes, report)
    check_faults(device, sizes, report)
    for check in (check_twins, check_token_twins, check_growth_twins, check_borrow_twins):
        check(device, sizes, report)
    check_copies(device, sizes, report)
    return report


def check_under_sanitizer(report: Report) -> None:
    """Run ``run_part`` in a process of its own under the tool, within a time limit."""
    tool = shutil.which(TOOL)
    if tool is None:
        report.skip(NAME, f"{TOOL} is not on PATH")
        return
    if not report.time_for(NAME, SECONDS_LEAST):
        return
    script = str(Path(__file__).with_name("gpu_check.py"))
    command = [tool, "--tool", "memcheck", "--error-exitcode", "99"]
    command += [sys.executable, script, "--sanitized"]
    # Without torch's own cache every tensor is an allocation, with its own bounds.
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "PYTHONSAFEPATH": "1"}
    limit = min(SECONDS_MOST, report.seconds_left)
    status, output = _run(command, environment, limit)
    if status is None:
        report.skip(NAME, f"not done within {limit:.0f} s")
    else:
        judge(status, output, report)


def _run(command: list[str], environment: dict[str, str], seconds: float) -> tuple[int | None, str]:
    """Exit status and output; no status if the time was up and the process group was ended."""
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=output, start_new_session=True
        )
        try:
            status: int | None = process.wait(seconds)
        except subprocess.TimeoutExpired:
            # The tool runs the program as a child, which would outlive it.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            status = None
        output.seek(0)
        return status, output.read()


def judge(status: int, output: str, report: Report) -> None:
    """Turn the tool's exit status and output into a check, or say why it could not run."""
    summary = re.search(r"ERROR SUMMARY: .*", output)
    text = without_folders(output)
    if summary is None:
        report.skip(NAME, f"no summary, exit status {status}: {text[-300:]}")
        return
    with report.check(NAME):
        findings = [line for line in text.splitlines() if "=========" in line][:12]
        require(CLEAN in summary[0], " ".join(findings))
        require(status == 0, f"clean, but exit status {status}: {text[-500:]}")

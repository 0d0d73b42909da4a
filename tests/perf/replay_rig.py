"""Runs of the command `replay` on pools small enough for a test."""

import json

from click.testing import CliRunner

from kvdefrag.perf.__main__ import main

SMALL = ["--page-bytes=64", "--page-scale=1", "--device=cpu"]
HYBRID = [*SMALL, "--state-bytes=6000"]
PRESSED = [*HYBRID, "--pool-gib=0.001", "--running=16", "--limit=60"]
TIMES = ("host_time", "elapsed_s", "peak_rss_bytes")


def run(*options):
    return CliRunner().invoke(main, ["replay", *options])


def report_of(tmp_path, *options, exit_code=0):
    path = tmp_path / "report.json"
    result = run(*options, f"--json={path}")
    assert result.exit_code == exit_code, result.output
    return json.loads(path.read_text())

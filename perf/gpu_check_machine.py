"""The machine that a GPU check ran on, and the memory it has to spare."""

from __future__ import annotations

import platform
import re
import subprocess
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton

import kvdefrag


def machine_facts(device: torch.device, root: str) -> dict[str, Any]:
    """Device, software and commit; what cannot be had is None."""
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "device": _device_facts(device),
        "software": {
            "driver": _driver(),
            "cuda": torch.version.cuda,
            "torch": torch.__version__,
            "triton": triton.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
            "kvdefrag": kvdefrag.__version__,
            "commit": _commit(root),
        },
    }


def default_path(facts: dict[str, Any], root: str) -> Path:
    """Where the JSON goes: named after the device and the date."""
    name = re.sub(r"[^a-z0-9]+", "-", str(facts["device"]["name"]).lower()).strip("-")
    return Path(root, "perf", "results", f"{name}-{facts['date']}.json")


def free_bytes(device: torch.device) -> int:
    """Device memory that can still be had, what torch holds unused included."""
    if device.type != "cuda":
        return 4 << 30
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(device)[0]


def finish(device: torch.device) -> None:
    """Wait for the device, if it is one to wait for."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _device_facts(device: torch.device) -> dict[str, Any]:
    if device.type != "cuda":
        return {"name": "CPU, Triton's interpreter"}
    found = torch.cuda.get_device_properties(device)
    return {
        "name": torch.cuda.get_device_name(device),
        "capability": ".".join(map(str, torch.cuda.get_device_capability(device))),
        "multiprocessors": getattr(found, "multi_processor_count", None),
        "memory_bytes": getattr(found, "total_memory", None),
        "l2_bytes": getattr(found, "L2_cache_size", None),
    }


def _output(*command: str, folder: str | None = None) -> str | None:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _driver() -> str | None:
    listed = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return listed.splitlines()[0].strip() if listed else None


def _commit(root: str) -> str | None:
    """The commit, with a mark if files that git tracks differ from it."""
    commit = _output("git", "rev-parse", "HEAD", folder=root)
    if not commit:
        return None
    changed = _output("git", "status", "--porcelain", "--untracked-files=no", folder=root)
    return f"{commit}+changes" if changed else commit

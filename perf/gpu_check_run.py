"""The order of a GPU check: promises first, then correctness, then time."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import torch

from . import gpu_check_busy as busy
from . import gpu_check_graph as graph
from . import gpu_check_table_times as table_times
from .gpu_check_bandwidth import measure_bandwidth, measure_sweep, set_targets
from .gpu_check_borrow_twins import check_borrow_twins
from .gpu_check_calls import measure_calls
from .gpu_check_clock import Clock
from .gpu_check_copies import check_beyond_32_bits, check_copies
from .gpu_check_faults import check_faults
from .gpu_check_flush import measure_flush
from .gpu_check_growth_twins import check_growth_twins
from .gpu_check_lockstep_tokens import check_lockstep
from .gpu_check_machine import default_path, finish, free_bytes, machine_facts
from .gpu_check_promises import check_no_sync, check_prewarm
from .gpu_check_report import Report
from .gpu_check_sanitizer import check_under_sanitizer, run_part
from .gpu_check_sizes import INTERPRETED, ON_A_GPU, Sizes
from .gpu_check_streams import check_streams
from .gpu_check_table import table
from .gpu_check_token_twins import check_token_twins
from .gpu_check_twins import check_twins

Section = Callable[[], None]

ESTIMATED_S = {
    "prewarm": 70, "sync debug mode": 5, "CUDA graph": 4, "forwards in flight": 3, busy.GROUP: 5,
    "lockstep": 40, "faults": 3, "kernels against twins": 20, "tokens against twins": 35,
    "growth against twins": 40, "borrowed ids against twins": 25, "copies against twins": 30,
    "beyond 2**32 bytes": 8, "copy bandwidth": 40, "urgent flush": 25, "host time of calls": 10,
    graph.GROUP: 3, table_times.GROUP: 5, "tile sweep": 20, "compute-sanitizer": 90,
}  # fmt: skip
"""How long each section may take on a large GPU: a guess, to be held against the JSON's
``section_seconds``.
"""


def run(device_name: str, seconds: float, out: str | None, root: str) -> int:
    """Check and time everything; the exit status. The JSON is rewritten after every section."""
    device = _device(device_name)
    sizes = ON_A_GPU if device.type == "cuda" else INTERPRETED
    facts = machine_facts(device, root)
    report = Report(facts, seconds)
    path = Path(out) if out else default_path(facts, root)
    guarded = [(report.check, *section) for section in _checks(device, sizes, report)]
    guarded += [(report.measurement, *section) for section in _timings(device, sizes, report)]
    if device.type == "cuda":
        print(f"by estimate {sum(ESTIMATED_S.values())} s, and {seconds:.0f} s at most")
    for guard, name, section in guarded:
        if report.time_for(name, 10):
            left = report.seconds_left
            print(f"{name}: {left:.0f} s left", flush=True)
            with guard(name):
                section()
            _give_memory_back(device, name, report)
            report.section_seconds[name] = round(left - report.seconds_left, 1)
            report.write(path)
    set_targets(report)
    report.write(path)
    print(table(report.as_dict()))
    print(f"written to {path.name}")
    return 0 if report.passed else 1


def run_sanitized(device_name: str) -> int:
    """The part that compute-sanitizer watches."""
    return 0 if run_part(_device(device_name)).passed else 1


def _device(name: str) -> torch.device:
    return torch.empty(0, device=name).device


def _checks(device: torch.device, sizes: Sizes, report: Report) -> list[tuple[str, Section]]:
    sections: list[tuple[str, Section]] = [
        ("prewarm", lambda: check_prewarm(device, sizes, report)),
    ]
    if device.type == "cuda":
        sections += [
            ("sync debug mode", lambda: check_no_sync(device, sizes, report)),
            ("CUDA graph", lambda: graph.check_graph(device, report)),
        ]
    else:
        for name in ("sync debug mode", "CUDA graph", graph.GROUP, "compute-sanitizer"):
            report.skip(name, "there is no GPU")
    sections += [
        ("forwards in flight", lambda: check_streams(device, report)),
        (busy.GROUP, lambda: busy.check_busy(device, sizes, report)),
        ("lockstep", lambda: check_lockstep(device, sizes, report)),
        ("faults", lambda: check_faults(device, sizes, report)),
        ("kernels against twins", lambda: check_twins(device, sizes, report)),
        ("tokens against twins", lambda: check_token_twins(device, sizes, report)),
        ("growth against twins", lambda: check_growth_twins(device, sizes, report)),
        ("borrowed ids against twins", lambda: check_borrow_twins(device, sizes, report)),
        ("copies against twins", lambda: check_copies(device, sizes, report)),
    ]
    if sizes.beyond_32_bits:
        sections.append(("beyond 2**32 bytes", lambda: check_beyond_32_bits(device, report)))
    return sections


def _timings(device: torch.device, sizes: Sizes, report: Report) -> list[tuple[str, Section]]:
    clock = Clock(device)
    sections: list[tuple[str, Section]] = [
        ("copy bandwidth", lambda: measure_bandwidth(device, sizes, clock, report)),
        ("urgent flush", lambda: measure_flush(device, sizes, clock, report)),
        ("host time of calls", lambda: measure_calls(device, sizes, clock, report)),
        (
            table_times.GROUP,
            lambda: table_times.measure_tables(device, sizes, clock, report),
        ),
        ("tile sweep", lambda: measure_sweep(device, sizes, clock, report)),
    ]
    if device.type == "cuda":
        sections.insert(3, (graph.GROUP, lambda: graph.measure_graph(device, sizes, clock, report)))
        sections.append(("compute-sanitizer", lambda: check_under_sanitizer(report)))
    return sections


def _give_memory_back(device: torch.device, name: str, report: Report) -> None:
    """A check too: an error of the device stays until the process ends."""
    gc.collect()
    with report.check(f"the device works after {name}"):
        finish(device)
        free_bytes(device)

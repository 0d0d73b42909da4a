import os
import stat
from dataclasses import replace

import pytest
import torch

from kvdefrag.perf import gpu_check_graph, gpu_check_promises, gpu_check_sanitizer
from kvdefrag.perf.gpu_check_bandwidth import WorkingSet
from kvdefrag.perf.gpu_check_baselines import batched_look_up, copying_page_by_page
from kvdefrag.perf.gpu_check_clock import Clock
from kvdefrag.perf.gpu_check_flush import Ours, Scene
from kvdefrag.perf.gpu_check_guarded import Case, Guarded, run_both
from kvdefrag.perf.gpu_check_lockstep import Lockstep
from kvdefrag.perf.gpu_check_report import Report, Wrong
from kvdefrag.perf.gpu_check_sizes import INTERPRETED

from .stand_in_graphs import stand_in_graphs

CPU = torch.device("cpu")


class TestComparisons:
    """Each comparison of the script finds what it is for."""

    def test_twins_that_differ(self):
        def double(ids):
            ids *= 2

        def almost(ids):
            ids *= 2
            ids[2] += 1

        run_both(CPU, Case(double, double, (Guarded([1, 2, 3], stride=2),)), "same")
        with pytest.raises(Wrong, match="memory 0, word 4: 6 on the device, 7 on the host"):
            run_both(CPU, Case(double, almost, (Guarded([1, 2, 3], stride=2),)), "other")

    def test_arenas_that_differ(self):
        pair = Lockstep(CPU, INTERPRETED.geometries[0], seed=1)
        name = pair.names[0]
        with pytest.raises(Wrong, match="element 1 is 2 on the device, 9 on the host"):
            pair.both("x", lambda arena: [1, 2 if arena is pair.arenas[0] else 9])
        pair.arenas[0][name].physical_to_virtual[3] = 1
        with pytest.raises(Wrong, match="physical_to_virtual of 'full' 3 is 1 on the device"):
            pair.require_same_state("x")

    def test_a_byte_that_differs(self):
        pair = Lockstep(CPU, INTERPRETED.geometries[0], seed=1)
        pair.arenas[0].buffer[77] ^= 1
        with pytest.raises(Wrong, match="byte 77 is"):
            pair.require_same_state("x")

    def test_copies_that_are_wrong(self):
        moves = WorkingSet(torch.empty(1 << 14, dtype=torch.uint8), 64, 512)
        assert moves.moves == 8

        def good(sources, targets):
            moves.pages[targets] = moves.pages[sources]

        def shifted(sources, targets):
            moves.pages[targets] = moves.pages[sources.roll(1)]

        def too_much(sources, targets):
            good(sources, targets)
            moves.buffer[3] ^= 1

        assert moves.is_copied_by(good)
        assert not moves.is_copied_by(shifted)
        assert not moves.is_copied_by(too_much)
        assert not moves.is_copied_by(lambda sources, targets: None)

    def test_batches_touch_no_page_twice(self):
        moves = WorkingSet(torch.empty(1 << 14, dtype=torch.uint8), 64, 512)
        ids = torch.cat([torch.cat(batch) for batch in moves.batches])
        assert len(moves.batches) == 15
        assert ids.min() >= 1
        assert len(ids.unique()) == len(ids)

    @pytest.mark.parametrize("maker", [Ours, copying_page_by_page, batched_look_up])
    def test_a_flush(self, maker):
        scene = Scene(torch.empty((25, 4), dtype=torch.int64), 6, Clock(CPU))
        pool = maker(scene.pages)
        scene.prepare(pool)
        assert pool.flush() == 6
        assert scene.finding(pool, 6) == ""
        assert scene.finding(pool, 5) == "5 pages moved, not 6"
        scene.pages[12, 3] += 1
        assert scene.finding(pool, 6) == "a page does not hold its owner's mark"
        pool.virtual_to_physical[scene.live[0]] = 13
        assert scene.finding(pool, 6) == "the live pages are not packed"


class TestPromises:
    """The parts that need a GPU, with stand-ins for torch's side."""

    @pytest.fixture
    def modes(self, monkeypatch):
        modes = ["default"]
        monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: modes[-1])
        monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
        return modes

    def test_only_read_backs_are_excused(self, modes, monkeypatch):
        seen = []
        arena = gpu_check_promises.arena_of(CPU, gpu_check_promises.PREWARMED[0])
        backend = arena._shared.backend
        for name in ("read_back", "upload", "bind"):
            operation = getattr(backend, name)
            noted = lambda *a, name=name, op=operation: (seen.append((name, modes[-1])), op(*a))[1]  # noqa: E731
            monkeypatch.setattr(backend, name, noted)
        gpu_check_promises.excuse_read_backs(arena, gpu_check_promises.sync_debug_mode)
        with gpu_check_promises.sync_debug_mode("error"):
            ids = arena["full"].alloc(4)
            arena["full"].free(ids[:1])
            assert arena["full"].flush().moves == 1
        assert seen == [("bind", "error"), ("read_back", "default"), ("upload", "error")]
        assert modes[-1] == "default"

    def test_a_mode_that_notices_nothing_is_noticed(self, modes):
        report = Report({}, 100)
        gpu_check_promises.check_no_sync(CPU, INTERPRETED, report)
        assert [check["passed"] for check in report.checks] == [False, True, True]
        assert "a scalar read went unnoticed" in report.checks[0]["detail"]

    @pytest.mark.parametrize("replays", [True, False])
    def test_graph(self, replays, monkeypatch):
        stand_in_graphs(monkeypatch, replays)
        report = Report({}, 100)
        gpu_check_graph.check_graph(CPU, report)
        assert [check["passed"] for check in report.checks] == [replays] * 2

    def test_clock_with_events(self, monkeypatch):
        calls = []

        class Event:
            def __init__(self, enable_timing):
                assert enable_timing

            def record(self):
                calls.append("event")

            def elapsed_time(self, end):
                return 0.25

        class Device:
            type = "cuda"

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda device: calls.append("wait"))
        monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: calls.append("hold"))
        clock = Clock(Device())
        assert clock.device_us([lambda: calls.append("run")] * 2) == [250, 250]
        assert calls == ["wait", *["hold", "event", "run", "event"] * 2, "wait"]
        assert clock.host_us(lambda: None) > 0


class TestSanitizer:
    @pytest.mark.parametrize(
        ("status", "output", "passed"),
        [
            (0, "========= ERROR SUMMARY: 0 errors", True),
            (99, "========= Invalid read\n========= ERROR SUMMARY: 3 errors", False),
            (1, "FAILED x\n========= ERROR SUMMARY: 0 errors", False),
        ],
    )
    def test_verdict(self, status, output, passed):
        report = Report({}, 100)
        gpu_check_sanitizer.judge(status, output, report)
        assert [check["passed"] for check in report.checks] == [passed]

    def test_a_tool_that_cannot_run_is_no_verdict(self):
        report = Report({}, 100)
        gpu_check_sanitizer.judge(1, "Error: this driver is too old", report)
        assert report.checks == []
        assert "driver is too old" in report.skipped[0]["reason"]

    def test_no_tool(self, monkeypatch):
        monkeypatch.setenv("PATH", "")
        report = Report({}, 100)
        gpu_check_sanitizer.check_under_sanitizer(report)
        assert "not on PATH" in report.skipped[0]["reason"]

    @pytest.mark.parametrize(
        ("body", "seconds", "skipped"),
        [
            ('test "$PYTORCH_NO_CUDA_MEMORY_CACHING" = 1 && echo "ERROR SUMMARY: 0 errors"', 60, 0),
            ("sleep 60 & wait", 41, 1),
        ],
        ids=["clean", "slow"],
    )
    def test_the_tool_is_run(self, body, seconds, skipped, monkeypatch, tmp_path):
        tool = tmp_path / "compute-sanitizer"
        tool.write_text(f"#!/bin/sh\n{body}\n")
        tool.chmod(tool.stat().st_mode | stat.S_IEXEC)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setattr(gpu_check_sanitizer, "SECONDS_LEAST", 0.1)
        monkeypatch.setattr(gpu_check_sanitizer, "SECONDS_MOST", 60.0 if not skipped else 0.5)
        report = Report({}, seconds)
        gpu_check_sanitizer.check_under_sanitizer(report)
        assert len(report.skipped) == skipped
        assert [check["passed"] for check in report.checks] == [True] * (1 - skipped)

    def test_the_part_that_it_watches(self, monkeypatch):
        sizes = replace(
            INTERPRETED,
            id_counts=(),
            token_counts=(),
            grown_counts=(),
            zeroed_counts=(),
            page_bytes=(16,),
        )
        monkeypatch.setattr(gpu_check_sanitizer, "INTERPRETED", sizes)
        report = gpu_check_sanitizer.run_part(CPU)
        assert report.passed
        assert {check["name"].split(":")[0] for check in report.checks} == {
            "lockstep",
            "faults",
            "copy_pages",
            "copy_pages_layered",
        }

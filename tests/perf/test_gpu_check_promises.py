"""What a GPU check says of streams, a busy device and graphs, with stand-ins for a GPU."""

from contextlib import contextmanager

import pytest
import torch

from kvdefrag.allocator.band import Band
from kvdefrag.allocator.hazards import Hazards
from kvdefrag.perf import gpu_check_busy as busy
from kvdefrag.perf import gpu_check_faults as faults
from kvdefrag.perf import gpu_check_graph as graph
from kvdefrag.perf import gpu_check_streams as streams
from kvdefrag.perf import gpu_check_table_times as table_times
from kvdefrag.perf.gpu_check_clock import Clock
from kvdefrag.perf.gpu_check_promises import BORROWING, PREWARMED, arena_of
from kvdefrag.perf.gpu_check_report import Report, Wrong
from kvdefrag.perf.gpu_check_traffic import Traffic

from .stand_in_graphs import stand_in_graphs

CPU = torch.device("cpu")


class TestStreams:
    """Each scenario finds a library that does not keep its promise."""

    def test_a_forward_that_nobody_noted(self, monkeypatch):
        monkeypatch.setattr(Hazards, "launched", lambda self, forward: None)
        for scenario in (streams.written_page, streams.read_page, streams.pending_page):
            with pytest.raises(Wrong, match=r"idle flushe?s?: "):
                scenario(CPU, streams.by_hand)

    def test_a_stream_that_does_not_wait(self, monkeypatch):
        monkeypatch.setattr(Hazards, "wait_for", lambda self, pending, fences=(): None)
        with pytest.raises(Wrong, match="moved before it was written"):
            streams.written_page(CPU, streams.by_hand)

    def test_a_pending_page_that_is_filled_too_early(self, monkeypatch):
        def reclaimed(self, pending, fences=()):
            for each in pending:
                each.fences.clear()

        monkeypatch.setattr(Hazards, "wait_for", reclaimed)
        with pytest.raises(Wrong, match="read a page that was filled again"):
            streams.read_page(CPU, streams.by_hand)

    def test_a_host_that_waits(self, monkeypatch):
        def wait(fence):
            fence.finish()

        monkeypatch.setattr(streams.ManualFence, "wait", wait)
        with pytest.raises(Wrong, match="the host waited for the forward in an urgent flush"):
            streams.written_page(CPU, streams.by_hand)

    def test_a_lease_that_holds_nothing(self, monkeypatch):
        class NoLease:
            def release(self):
                pass

        monkeypatch.setattr(Band, "lease", lambda self, pages: NoLease())
        with pytest.raises(Wrong, match="flush under a lease"):
            streams.leased_page(CPU, streams.by_hand)

    def test_the_order_on_a_stream_of_its_own(self, monkeypatch):
        done = []

        class Stream:
            def __init__(self, device):
                self.device = device

            def wait_stream(self, other):
                done.append(f"wait for {other}")

        class Event:
            def record(self, stream=None):
                done.append("record")

            def synchronize(self):
                done.append("synchronize")

        @contextmanager
        def on(stream):
            yield

        monkeypatch.setattr(torch.cuda, "Stream", Stream)
        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "stream", on)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "mine")
        monkeypatch.setattr(streams, "keep_busy", lambda device, ms: done.append(f"{ms} ms"))
        forward = streams.on_a_stream(CPU, lambda: done.append("work"))
        forward.end()
        assert done == ["wait for mine", "50.0 ms", "work", "record", "synchronize"]

    def test_how_long_a_sleep_is(self, monkeypatch):
        slept = []

        class Event:
            def __init__(self, enable_timing):
                assert enable_timing

            def record(self):
                pass

            def elapsed_time(self, other):
                return 10.0

        class Device:
            type = "cuda"

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "_sleep", slept.append)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
        device = Device()
        streams.keep_busy(device, 50)
        assert slept == [20_000_000, 20_000_000, 100_000_000]
        monkeypatch.delattr(torch.cuda, "_sleep")
        with pytest.raises(Wrong, match=r"has no torch\.cuda\._sleep"):
            streams.keep_busy(device, 50)


class TestMirror:
    @pytest.mark.parametrize("cause", [faults._refuse, faults._corrupt])
    def test_a_fault_that_does_not_show(self, cause, monkeypatch):
        def blind(arena):
            arena._shared.record.mirror = arena._shared.record.mirror.copy()

        monkeypatch.setattr(faults, "second_record", blind)
        with pytest.raises(Wrong, match="on the host"):
            faults._mirrored(CPU, cause)

    def test_a_copy_is_noticed(self):
        def cause(pool, ids):
            pool.free(ids[5:6])
            pool.flush(max_moves=0)
            return faults._refuse(pool, ids)

        with pytest.raises(Wrong, match="it took a copy"):
            faults._mirrored(CPU, cause)


class TestBusy:
    def test_verdicts(self):
        report = Report({}, 100)
        samples = {"quick": [10.0, 9000.0, 12.0], "slow": [2100.0] * 3, "broken": [1.0]}
        busy.judge(
            samples, {"broken": "RuntimeError: called a synchronizing operation"}, 2e3, report
        )
        found = {c["name"].split(": ")[1]: (c["passed"], c["detail"]) for c in report.checks}
        assert found["quick"] == (True, "")
        assert "2100 us, at most 2000" in found["slow"][1]
        assert "synchronizing operation" in found["broken"][1]
        assert [figure["value"] for figure in report.figures] == [12.0, 2100.0, 1.0]

    def test_one_call_that_fails_stops_no_other(self):
        scene = busy.Scene(CPU, 4)
        calls = scene.calls()

        def broken():
            raise RuntimeError("it waited")

        calls["translate"] = broken
        scene.calls = lambda: calls
        failed = {}
        times = busy._round(CPU, scene, 0, "error", failed)
        assert list(failed) == ["translate"]
        assert "RuntimeError: it waited" in failed["translate"]
        assert len(times) == len(calls) + 1

    def test_a_device_that_is_done_too_early(self, monkeypatch):
        answers = iter([False, False, True])
        monkeypatch.setattr(busy, "_idle_after", lambda device: lambda: next(answers))
        failed = {}
        busy._round(CPU, busy.Scene(CPU, 4), 0, "error", failed)
        assert list(failed) == ["lease, released"]

    def test_pages_that_are_left_are_noticed(self):
        scene = busy.Scene(CPU, 4)
        scene.full.alloc(1)
        with pytest.raises(Wrong, match="1 pages of 'full' are left"):
            scene.end()


class TestGraph:
    @pytest.fixture
    def launches(self, monkeypatch):
        monkeypatch.setattr(graph, "LAUNCHES", 1)
        return stand_in_graphs(monkeypatch)

    def test_room_that_is_not_used(self, launches, monkeypatch):
        monkeypatch.setattr(graph, "CAPACITY_TOKENS", 1024)
        monkeypatch.setattr(graph, "USED_TOKENS", 64)
        report = Report({}, 100)
        sizes = type("Sizes", (), {"repetitions": 2})
        graph.measure_graph(CPU, sizes, Clock(CPU), report)
        assert len(launches) == 2
        assert [figure["what"] for figure in report.figures] == [graph.EXACT, graph.CAPACITY]
        assert [target["wanted"] for target in report.targets] == [1.5]
        assert report.targets[0]["measured"] > 0

    def test_a_result_that_is_not_the_tables(self, launches):
        pool = arena_of(CPU, BORROWING)["full"]
        tokens = pool.alloc_tokens(40)
        made = graph.captured(pool, tokens, 48)
        graph._require_replay(pool, made)
        launches[0] = lambda: made.out.fill_(7)
        with pytest.raises(Wrong, match="other addresses"):
            graph._require_replay(pool, made)


class TestTableTimes:
    def test_a_kernel_that_changes_too_little(self):
        state = table_times.State(CPU, 8, bound=True)
        state.v2p[state.ids[:3]] = -1
        with pytest.raises(Wrong, match="x: 3 rows changed, not 8"):
            state.require_changed("x", 8)
        state.restore()
        state.record[0] = 1
        with pytest.raises(Wrong, match="a fault was recorded"):
            state.require_changed("x", 0)

    def test_pairs_are_timed_by_turns(self):
        done, report = [], Report({}, 100)
        ours, other = (("a", lambda: done.append("a")), ("b", lambda: done.append("b")))
        table_times.time_pair(
            {"of": "x"}, ours, other, lambda: done.append("r"), 2, Clock(CPU), report
        )
        assert done == ["r", "a", "r", "b"] * 4
        assert [figure["what"] for figure in report.figures] == ["a", "b", "ratio"]
        assert all(figure["rounds"] == 2 for figure in report.figures)


def test_traffic_makes_every_kind_of_call():
    of_borrowed = {"_bind", "_release", "_cascade"}
    of_tokens = {"_alloc_tokens", "_decode", "_extend", "_free_tokens", "_free_run"}
    for pools, kinds in ((BORROWING, of_borrowed | of_tokens), (PREWARMED[0], of_tokens)):
        found = Traffic(arena_of(CPU, pools), 1).kinds()
        assert found & (of_borrowed | of_tokens) == kinds

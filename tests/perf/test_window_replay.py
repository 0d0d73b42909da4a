"""Replays of models with a sliding window: what its pool holds, and that every byte is right."""

from collections import Counter

import pytest

from kvdefrag import Arena
from kvdefrag.kernels.backend import HostBackend
from kvdefrag.perf.engine import Engine
from kvdefrag.perf.page_stamps import PageStamps
from kvdefrag.perf.page_store import PageStore
from kvdefrag.perf.trace import BLOCK_TOKENS
from kvdefrag.perf.window_pages import WindowPages

from .replay_rig import SMALL, TIMES, report_of, run

WINDOW_TOKENS, PAGE_SIZE = 128, 16
WINDOW_PAGES = WINDOW_TOKENS // PAGE_SIZE
TWO_POOLS = [*SMALL, "--window-page-bytes=64", f"--window-tokens={WINDOW_TOKENS}"]
THREE_POOLS = [*TWO_POOLS, "--state-bytes=3000"]
PRESSED = [*THREE_POOLS, "--pool-gib=0.001", "--running=16", "--limit=60"]
PRESETS = {
    "gpt-oss-20b": ["--page-scale=8192", "--pool-gib=12", "--limit=200"],
    "phi-4-mini-flash": ["--page-scale=1024", "--pool-gib=4", "--limit=200"],
}
SHARED = (
    ([1, 2, 3], 10, 5),
    ([1, 2, 4], 10, 5),  # branches at block 2, where no window is kept yet
    ([1, 2, 5], 10, 5),  # finds the one that the branch left there
    ([1, 2, 4], 10, 5),  # finds the one at a prompt's last full block
    ([1, 2, 4], 0, 5),  # the last token of a prompt is always computed
)


def pool_of(pool_bytes):
    return f"--pool-gib={pool_bytes / 2**30}"


@pytest.fixture
def watched(monkeypatch):
    """Hold what has a page in the window against the running requests and the cache, as it goes."""
    seen = Counter()
    decode = Engine._decode

    def checked_decode(engine):
        decode(engine)
        seen["steps"] += 1
        if seen["steps"] % 3:
            return
        expected = expected_holders(engine, seen)
        table = engine._store.timed.arena["window"].virtual_to_physical[1:]
        held = (table >= 0).nonzero()[:, 0] + 1
        assert held.tolist() == sorted(expected)
        assert len(held) == engine._store.window.held

    monkeypatch.setattr(Engine, "_decode", checked_decode)
    return seen


def expected_holders(engine, seen):
    """Ids whose tokens something still needs, by a look at every page and every token."""
    batch, store = engine._batch, engine._store
    window_tokens = engine._layout.window_tokens
    ids = []
    for slot, holder in enumerate(batch._holders):
        if holder is None:
            continue
        job = holder[0]
        pages = int(batch._page_counts[slot])
        generated = job.request.output_tokens - int(batch._remaining[slot])
        # The window moved when the newest page was taken, for its first token, or on admission.
        admitted = job.private_tokens
        moved_at = max(admitted, (pages - 1) * PAGE_SIZE + 1) if pages else 0
        assert moved_at <= job.request.input_tokens % BLOCK_TOKENS + generated
        row = store._private_table.first(slot, pages).tolist()
        near = {token // PAGE_SIZE for token in range(max(0, moved_at - window_tokens), moved_at)}
        ids += [row[page] for page in near]
        seen["near"] += len(near)
        seen["passed"] += pages - len(near)
    for node in engine.cache.nodes():
        if node.checkpoint:
            row = store._block_table.take([node.row]).tolist()
            for page, virtual_id in enumerate(row):
                if (page + 1) * PAGE_SIZE > BLOCK_TOKENS - window_tokens:
                    ids.append(virtual_id)
    return ids


@pytest.mark.parametrize("sizes", [TWO_POOLS, THREE_POOLS], ids=["two pools", "three pools"])
def test_the_window_holds_what_is_still_needed_and_nothing_else(tmp_path, watched, sizes):
    report = report_of(tmp_path, *sizes, "--pool-gib=0.0009", "--running=16", "--limit=50")
    assert report["passed"]
    assert report["flushes_with_moves"] > 10
    assert min(report["evicted_pages"].values()) > 0
    assert watched["near"] > 1000
    assert watched["passed"] > 1000


def test_windows_that_no_page_size_divides(tmp_path, watched):
    sizes = [*SMALL, "--window-page-bytes=96", "--window-tokens=100", "--state-bytes=3000"]
    report = report_of(tmp_path, *sizes, "--pool-gib=0.0012", "--running=16", "--limit=20")
    assert report["passed"]
    assert watched["passed"] > 1000


@pytest.mark.parametrize("name", PRESETS)
def test_under_pressure_every_byte_of_a_preset_is_right(tmp_path, name):
    report = report_of(tmp_path, f"--geometry={name}", *PRESETS[name], "--device=cpu")
    assert report["passed"]
    assert report["requests"]["finished"] == 200
    assert report["requests"]["preemptions"] > 0
    assert report["tokens"]["hit"] > 0
    assert report["flushes_with_moves"] > 50
    assert min(report["evicted_pages"].values()) > 0
    assert list(report["occupancy"][-1]["pools"]) == list(report["pools"])
    assert report["settings"]["window_pages"] > 0
    assert any(cell["window"] > 0 for cell in report["heat"]["after"])


def test_a_hit_reaches_the_deepest_window_that_is_kept(tmp_path, write_trace):
    report = report_of(tmp_path, write_trace(*SHARED), *TWO_POOLS, "--pool-gib=0.01")
    assert report["tokens"]["hit"] == 0 + 0 + (2 + 3 + 3) * BLOCK_TOKENS - 1
    assert list(report["pools"]) == ["full", "window"]
    assert report["pools"]["full"]["live_pages"] == 5 * 32
    assert report["pools"]["window"]["live_pages"] == 4 * WINDOW_PAGES


def test_a_hit_is_compared_in_the_window_where_it_goes_on(write_trace, monkeypatch):
    compared = Counter()
    compare = WindowPages.compare

    def counting_compare(pages, virtual_ids, keys, moment):
        compared[moment] += len(keys)
        compare(pages, virtual_ids, keys, moment)

    monkeypatch.setattr(WindowPages, "compare", counting_compare)
    assert run(write_trace(*SHARED), *TWO_POOLS, "--pool-gib=0.01").exit_code == 0
    assert compared["prefix hit"] == 3 * WINDOW_PAGES
    assert compared["at the end"] == 4 * WINDOW_PAGES


def test_every_page_of_every_pool_is_compared_before_it_goes(monkeypatch):
    pages = Counter()
    write, compare = PageStamps.write, PageStamps.compare

    def counting_write(stamps, virtual_ids, keys):
        assert len(virtual_ids) == len(keys)
        pages[stamps._name, "written"] += len(keys)
        write(stamps, virtual_ids, keys)

    def counting_compare(stamps, virtual_ids, keys, moment):
        pages[stamps._name, "last look"] += len(keys) * (moment != "prefix hit")
        compare(stamps, virtual_ids, keys, moment)

    monkeypatch.setattr(PageStamps, "write", counting_write)
    monkeypatch.setattr(PageStamps, "compare", counting_compare)
    assert run(*PRESSED).exit_code == 0
    for pool in ("full", "window", "state"):
        assert pages[pool, "written"] == pages[pool, "last look"] > 60


def test_same_trace_same_counts_whatever_the_backend(tmp_path, write_trace, monkeypatch):
    # What runs in the interpreter has nothing to compile.
    monkeypatch.setattr(Arena, "prewarm", lambda arena: None)
    sessions = [[1, *(10 * (i % 4) + j for j in range(1 + i * 7 % 3))] for i in range(6)]
    trace = write_trace(
        *((blocks, i * 37 % 128, 150 + i * 60) for i, blocks in enumerate(sessions))
    )
    sizes = ["--page-bytes=24", "--page-scale=1", "--page-size=128", "--state-bytes=130"]
    window = ["--window-page-bytes=48", "--window-tokens=128"]
    pool = [pool_of(1300), "--running=3", "--device=cpu", "--verify=sample"]
    reports = []
    for backend in ("host", "triton"):
        report = report_of(tmp_path, trace, *sizes, *window, *pool, f"--backend={backend}")
        assert report["settings"].pop("backend") == backend
        for key in TIMES:
            del report[key]
        reports.append(report)
    assert reports[0] == reports[1]
    assert reports[0]["flushes_with_moves"] > 4


def test_a_copy_that_does_nothing_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(HostBackend, "copy_pages", lambda self, *arguments: None)
    report = report_of(tmp_path, *PRESSED, exit_code=1)
    assert report["byte_check"]["wrong_pages"] > 0


def test_a_wrong_page_names_the_window(tmp_path, monkeypatch):
    write = WindowPages.write
    monkeypatch.setattr(
        WindowPages, "write", lambda pages, ids, keys: write(pages, ids[:-1], keys[:-1])
    )
    report = report_of(tmp_path, *PRESSED, exit_code=1)
    assert "pool window" in report["byte_check"]["first_wrong"]


def test_a_page_that_is_never_released_is_found(monkeypatch):
    monkeypatch.setattr(WindowPages, "release", lambda pages, ids, page_count: None)
    result = run(*PRESSED)
    assert result.exit_code == 1
    assert "UsageError" in result.output


def test_the_window_alone_decides_whether_a_request_fits(tmp_path, write_trace):
    sizes = [*SMALL, "--window-page-bytes=6400", f"--window-tokens={WINDOW_TOKENS}"]
    for pages, served in ((WINDOW_PAGES + 1, 0), (WINDOW_PAGES + 2, 1)):
        # A sink of 6,400 bytes, 33 pages of 64 and those of the window.
        pool = pool_of(6400 + 33 * 64 + pages * 6400)
        report = report_of(tmp_path, write_trace(([1], 1, 4)), *sizes, pool)
        assert report["requests"] == {"finished": served, "refused": 1 - served, "preemptions": 0}


def test_growth_that_the_window_has_no_room_for_preempts(tmp_path, write_trace, watched):
    trace = write_trace(*(([], 16, 320) for _ in range(3)))
    sizes = [*SMALL, "--window-page-bytes=640", f"--window-tokens={WINDOW_TOKENS}"]
    report = report_of(tmp_path, trace, *sizes, pool_of(640 + 60 * 64 + 25 * 640))
    assert report["passed"]
    assert report["requests"]["finished"] == 3
    assert report["requests"]["preemptions"] > 0
    assert report["tokens"]["generated"] == 960
    assert watched["passed"] > 50


def test_a_request_that_comes_back_has_its_last_window_only(write_trace, monkeypatch):
    bound = []
    write_window = PageStore.write_window

    def noting(store, nodes, slot, serial, first, page_count):
        bound.append((serial, first, page_count))
        write_window(store, nodes, slot, serial, first, page_count)

    monkeypatch.setattr(PageStore, "write_window", noting)
    # Both need 63 pages in the end; there is room for less than twice that many.
    trace = write_trace(([], 16, 1000), ([], 16, 990))
    assert run(trace, *TWO_POOLS, pool_of(64 * (1 + 80 + 19))).exit_code == 0
    (_, first, page_count) = bound[-1]
    assert bound[0] == (1, 0, 1)
    assert page_count > 30
    assert page_count - first in (WINDOW_PAGES, WINDOW_PAGES + 1)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--window-tokens=128"], "--window-tokens goes with --page-bytes"),
        (["--window-page-bytes=64"], "--window-page-bytes goes with --page-bytes"),
        ([*SMALL, "--window-tokens=128"], "go together"),
        ([*SMALL, "--window-page-bytes=64"], "go together"),
        ([*SMALL, "--window-page-bytes=64", "--window-tokens=513"], "--window-tokens"),
        ([*SMALL, "--window-page-bytes=0", "--window-tokens=16"], "--window-page-bytes"),
        ([*TWO_POOLS, "--window-page-bytes=9999999", "--pool-gib=0.001"], "holds no window page"),
        (["--geometry=gpt-oss-20b", "--compare=scalar"], "gpt-oss-20b has a sliding window"),
        (["--geometry=phi-4-mini-flash", "--compare=static"], "phi-4-mini-flash has a sliding"),
        ([*TWO_POOLS, "--compare=eager"], "explicit sizes has a sliding window"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_options_are_named_before_anything_runs(monkeypatch, options, part):
    monkeypatch.setattr(Engine, "run", lambda engine: pytest.fail("it ran"))
    result = run("--limit=1", *options)
    assert result.exit_code == 2
    assert part in " ".join(result.output.split())


def test_help_names_the_presets():
    output = run("--help").output
    for part in ("gpt-oss-20b", "phi-4-mini-flash", "--window-tokens", "--window-page-bytes"):
        assert part in output


def test_the_tables_show_the_window():
    output = run(*PRESSED, "--limit=10").output
    for part in ("window pages held at most", "evicted pages, window", "peak holes, window"):
        assert part in output

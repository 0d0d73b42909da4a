"""The serving model: what hits, what is shared, who waits and who is preempted."""

from kvdefrag.perf.page_store import PageStore
from kvdefrag.perf.trace import BLOCK_TOKENS

from .replay_rig import HYBRID, SMALL, report_of, run

SHARED = (
    ([1, 2, 3], 10, 5),
    ([1, 2, 4], 10, 5),  # branches at block 2, where no state is kept yet
    ([1, 2, 5], 10, 5),  # finds the state that the branch left there
    ([1, 2, 4], 10, 5),  # finds the state at a prompt's last full block
    ([1, 2, 4], 0, 5),  # the last token of a prompt is always computed
)


def test_a_hit_reaches_the_deepest_state(tmp_path, write_trace):
    report = report_of(tmp_path, write_trace(*SHARED), *HYBRID, "--pool-gib=0.01")
    hits = 0 + 0 + 2 * BLOCK_TOKENS + 3 * BLOCK_TOKENS + 3 * BLOCK_TOKENS - 1
    assert report["tokens"]["hit"] == hits
    assert report["tokens"]["hit_rate"] == hits / (15 * BLOCK_TOKENS + 40)
    assert report["pools"]["state"]["live_pages"] == 4


def test_without_states_a_hit_reaches_the_deepest_block(tmp_path, write_trace):
    report = report_of(tmp_path, write_trace(*SHARED), *SMALL, "--pool-gib=0.01")
    assert report["tokens"]["hit"] == (2 + 2 + 3 + 3) * BLOCK_TOKENS - 1
    assert list(report["pools"]) == ["full"]


def test_shared_blocks_are_held_once(tmp_path, write_trace):
    report = report_of(tmp_path, write_trace(*SHARED), *HYBRID, "--pool-gib=0.01")
    assert report["pools"]["full"]["live_pages"] == 5 * 32
    assert report["evicted_pages"] == {"full": 0, "state": 0}


def test_a_working_state_and_private_pages_come_and_go(tmp_path, write_trace):
    trace = write_trace(([1], 15, 18), ([], 1, 1))
    report = report_of(tmp_path, trace, *HYBRID, "--pool-gib=0.01", "--running=1")
    # Block and checkpoint stay; 33 private tokens took 1 page at admission and 2 in decoding.
    assert report["alloc_calls"] == 2 + 2
    assert report["tokens"]["generated"] == 19
    assert report["tokens"]["decode_steps"] == 19
    assert report["pools"]["full"] == {"live_pages": 32, "hole_pages": 3, "peak_hole_pages": 3}


def pool_of(pages):
    return f"--pool-gib={(pages + 0.5) * 64 / 2**30}"


def test_growth_that_does_not_fit_preempts_the_youngest(tmp_path, write_trace):
    trace = write_trace(*(([], 16, 160) for _ in range(3)))
    report = report_of(tmp_path, trace, *SMALL, pool_of(1 + 25))
    assert report["requests"] == {"finished": 3, "refused": 0, "preemptions": 1}
    assert report["tokens"]["generated"] == 480
    assert report["tokens"]["prompt"] == 48
    assert report["byte_check"]["wrong_pages"] == 0


def test_the_preempted_request_is_the_one_admitted_last(write_trace, monkeypatch):
    released = []
    release = PageStore.release

    def noting_release(store, slot, serial, page_count, window_first):
        released.append(serial)
        release(store, slot, serial, page_count, window_first)

    monkeypatch.setattr(PageStore, "release", noting_release)
    trace = write_trace(([], 16, 300), ([], 16, 200))
    assert run(trace, *SMALL, pool_of(1 + 25)).exit_code == 0
    assert released == [2, 1, 3]


def test_a_request_that_never_fits_is_refused(tmp_path, write_trace):
    trace = write_trace(([1, 2], 0, 4), (list(range(10, 20)), 0, 4), ([1, 2], 1, 4))
    report = report_of(tmp_path, trace, *SMALL, pool_of(1 + 100))
    assert report["requests"] == {"finished": 2, "refused": 1, "preemptions": 0}


def test_a_refused_request_leaves_no_lock(tmp_path, write_trace):
    trace = write_trace(([1, 2], 0, 4), ([1, 2, 3, 4], 0, 4), ([5, 6, 7], 0, 4))
    report = report_of(tmp_path, trace, *SMALL, pool_of(1 + 100))
    assert report["requests"] == {"finished": 2, "refused": 1, "preemptions": 0}


def test_a_request_that_outgrows_the_pool_alone_is_refused(tmp_path, write_trace):
    trace = write_trace(([], 16, 16 * 40), ([], 16, 16))
    report = report_of(tmp_path, trace, *SMALL, pool_of(1 + 20))
    assert report["requests"]["refused"] == 1
    assert report["requests"]["finished"] == 1
    assert report["pools"]["full"]["live_pages"] == 0


def test_a_request_that_outgrows_the_pool_alone_lets_those_in_that_wait(tmp_path, write_trace):
    trace = write_trace(([], 16 * 15, 16 * 40), ([], 16 * 10, 16))
    report = report_of(tmp_path, trace, *SMALL, pool_of(1 + 20))
    assert report["requests"] == {"finished": 1, "refused": 1, "preemptions": 0}
    assert report["waited_requests"] == 1


def test_waiting_requests_are_admitted_when_another_finishes(tmp_path, write_trace):
    trace = write_trace(*(([block], 16, 8) for block in range(6)))
    report = report_of(tmp_path, trace, *SMALL, pool_of(1 + 80))
    assert report["requests"] == {"finished": 6, "refused": 0, "preemptions": 0}
    # Two fit at a time and finish together: the third waited, and the fifth.
    assert report["waited_requests"] == 2
    assert report["evicted_pages"]["full"] > 0

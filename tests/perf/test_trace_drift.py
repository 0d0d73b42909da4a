from kvdefrag.perf.trace_drift import drift
from kvdefrag.perf.trace_generator import generate_trace

from .replay_rig import HYBRID, report_of

WINDOW = 50


def sessions(requests):
    found = {}
    for request in requests:
        found.setdefault(request.block_hashes[:2][-1], []).append(request)
    return found


def longest(requests):
    return {session: max(r.input_tokens for r in part) for session, part in requests.items()}


def test_windows_keep_their_requests_and_sessions_their_order():
    requests = generate_trace(230, seed=3)
    drifted = drift(requests, WINDOW)
    assert drifted != requests
    for first in range(0, 230, WINDOW):
        before, after = requests[first : first + WINDOW], drifted[first : first + WINDOW]
        assert sorted(before) == sorted(after)
        assert sessions(before).keys() == sessions(after).keys()
        for session, part in sessions(before).items():
            assert sessions(after)[session] == part


def test_short_and_long_sessions_take_turns():
    drifted = drift(generate_trace(200, seed=3), WINDOW)
    for number, first in enumerate(range(0, 200, WINDOW)):
        window = drifted[first : first + WINDOW]
        lengths = longest(sessions(window))
        by_request = [lengths[request.block_hashes[:2][-1]] for request in window]
        if number % 2:
            by_request.reverse()
        median = sorted(by_request)[WINDOW // 2]
        kinds = [length >= median for length in by_request]
        assert kinds == sorted(kinds)
        assert 0 < sum(kinds) < WINDOW


def test_the_option_reorders_the_replay(tmp_path):
    options = [*HYBRID, "--pool-gib=0.001", "--running=16", "--limit=60", "--verify=off"]
    plain = report_of(tmp_path, *options)
    drifted = report_of(tmp_path, *options, "--drift=20")
    assert plain["settings"]["drift"] is None
    assert drifted["settings"]["drift"] == 20
    assert drifted["tokens"]["prompt"] == plain["tokens"]["prompt"]
    assert drifted["moves"] != plain["moves"]

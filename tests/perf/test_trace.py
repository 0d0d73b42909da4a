import json
from collections import Counter

import numpy as np
import pytest

from kvdefrag.perf.trace import BLOCK_TOKENS, Request, TraceError, read_trace
from kvdefrag.perf.trace_generator import generate_trace

GOOD = {"timestamp": 5, "input_length": 1030, "output_length": 7, "hash_ids": [0, 1, 2]}


def write_lines(path, *records):
    lines = [r if isinstance(r, str) else json.dumps(r) for r in records]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_reads_requests_in_order_of_arrival(tmp_path):
    early = GOOD | {"timestamp": 1, "input_length": 1024, "hash_ids": [0, 9]}
    tied = GOOD | {"output_length": 8}
    path = write_lines(tmp_path / "t.jsonl", GOOD, "", early, tied)
    assert read_trace(path) == [
        Request(1, 1024, 7, (0, 9)),
        Request(5, 1030, 7, (0, 1, 2)),
        Request(5, 1030, 8, (0, 1, 2)),
    ]
    assert [request.full_blocks for request in read_trace(path)] == [2, 2, 2]


def test_limit_counts_requests_not_lines(tmp_path):
    path = write_lines(tmp_path / "t.jsonl", GOOD, "", GOOD, "not JSON")
    assert len(read_trace(path, limit=2)) == 2


@pytest.mark.parametrize(
    ("bad", "parts"),
    [
        ("{", ["line 2", "not JSON"]),
        ("[1]", ["line 2", "object"]),
        ({k: v for k, v in GOOD.items() if k != "timestamp"}, ["line 2", "timestamp", "missing"]),
        (GOOD | {"timestamp": -1}, ["line 2", "timestamp", "-1"]),
        (GOOD | {"timestamp": float("nan")}, ["line 2", "timestamp", "nan"]),
        (GOOD | {"timestamp": True}, ["line 2", "timestamp", "True"]),
        (GOOD | {"input_length": 0}, ["line 2", "input_length", "0"]),
        (GOOD | {"output_length": 0}, ["line 2", "output_length", "0"]),
        (GOOD | {"output_length": "7"}, ["line 2", "output_length", "'7'"]),
        (GOOD | {"output_length": 1.5}, ["line 2", "output_length", "1.5"]),
        (GOOD | {"hash_ids": 3}, ["line 2", "hash_ids", "3"]),
        (GOOD | {"hash_ids": [0, "a", 2]}, ["line 2", "hash_ids[1]", "'a'"]),
        (GOOD | {"hash_ids": [0, 1, 2**64]}, ["line 2", "hash_ids[2]", str(2**64)]),
        (GOOD | {"hash_ids": [0, 1]}, ["line 2", "hash_ids", "3 ids", "1030", "not 2"]),
    ],
    ids=lambda value: None if isinstance(value, list) else str(value)[:60],
)
def test_errors_name_line_and_field(tmp_path, bad, parts):
    path = write_lines(tmp_path / "t.jsonl", GOOD, bad)
    with pytest.raises(TraceError) as error:
        read_trace(path)
    assert all(part in str(error.value) for part in [str(path), *parts])


def test_errors_name_files_that_cannot_be_read(tmp_path):
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n")
    binary = tmp_path / "binary.jsonl"
    binary.write_bytes(b"\xff\xfe")
    for path in (empty, binary, tmp_path / "missing.jsonl"):
        with pytest.raises(TraceError, match=path.name):
            read_trace(path)


@pytest.fixture(scope="module")
def generated():
    return generate_trace(3000, seed=1)


def test_generator_is_deterministic_and_its_traces_are_heads_of_longer_ones(generated):
    assert generate_trace(3000, seed=1) == generated
    assert generate_trace(300, seed=1) == generated[:300]
    assert generate_trace(300, seed=2) != generated[:300]


def test_generated_requests_follow_the_format(generated, tmp_path):
    arrivals = [request.timestamp_ms for request in generated]
    assert arrivals == sorted(arrivals)
    path = write_lines(
        tmp_path / "t.jsonl",
        *(
            {
                "timestamp": request.timestamp_ms,
                "input_length": request.input_tokens,
                "output_length": request.output_tokens,
                "hash_ids": list(request.block_hashes),
            }
            for request in generated
        ),
    )
    assert read_trace(path) == generated


def test_generated_sessions_share_the_system_block_and_grow(generated):
    assert {request.block_hashes[0] for request in generated} == {0}
    tails = {}
    grown = 0
    for request in generated:
        full = request.block_hashes[: request.full_blocks]
        assert len(set(request.block_hashes)) == len(request.block_hashes)
        grown += len(full) > 1 and full[1] in tails
        if len(full) > 1:
            before = tails.setdefault(full[1], full)
            assert full[: len(before)] == before
            tails[full[1]] = full
    assert 0.25 < grown / len(generated) < 0.5


def test_a_block_hash_stands_for_one_prefix(generated):
    parents = {}
    for request in generated:
        hashes = request.block_hashes
        for parent, child in zip((None, *hashes), hashes, strict=False):
            assert parents.setdefault(child, parent) == parent


def test_generated_lengths_are_heavy_tailed_like_the_published_hour(generated):
    prompts = np.array([request.input_tokens for request in generated])
    answers = np.array([request.output_tokens for request in generated])
    assert 5_000 < np.median(prompts) < 8_000
    assert 9_000 < prompts.mean() < 14_000
    assert np.percentile(prompts, 99) > 60_000
    assert 200 < np.median(answers) < 400
    assert answers.max() <= 2_000
    blocks = Counter(h for request in generated for h in request.block_hashes)
    assert 0.25 < 1 - len(blocks) / blocks.total() < 0.45
    assert all(len(r.block_hashes) == -(-r.input_tokens // BLOCK_TOKENS) for r in generated)

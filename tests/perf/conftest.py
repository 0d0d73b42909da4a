import json

import pytest

from kvdefrag.perf.trace import BLOCK_TOKENS


@pytest.fixture
def write_trace(tmp_path):
    """Write requests given as (full block hashes, tokens beyond them, tokens to generate)."""

    def write(*requests):
        path = tmp_path / "trace.jsonl"
        fresh = 1000
        with path.open("w") as lines:
            for blocks, tail_tokens, output_tokens in requests:
                fresh += 1
                record = {
                    "timestamp": fresh,
                    "input_length": len(blocks) * BLOCK_TOKENS + tail_tokens,
                    "output_length": output_tokens,
                    "hash_ids": [*blocks, *([fresh] if tail_tokens else [])],
                }
                lines.write(json.dumps(record) + "\n")
        return f"--trace={path}"

    return write

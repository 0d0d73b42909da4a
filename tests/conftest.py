"""Chooses the Triton mode.

Kernels run in Triton's interpreter, unless TRITON_INTERPRET is set already: with 0, only
`tests/compiled` is collected; otherwise all but that. `tests/sglang` is collected where SGLang is
installed.
"""

import importlib.util
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Triton reads it when it is imported, which the test modules do.
os.environ.setdefault("TRITON_INTERPRET", "1")

TESTS = Path(__file__).resolve().parent
COMPILED = TESTS / "compiled"
SGLANG = TESTS / "sglang"
INTERPRETED = os.environ["TRITON_INTERPRET"] not in ("", "0")

# The interpreter takes milliseconds a program, so time per example says nothing.
settings.register_profile(
    "kvdefrag", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("kvdefrag")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    if collection_path == TESTS:
        return None
    if collection_path.is_relative_to(SGLANG) and importlib.util.find_spec("sglang") is None:
        return True
    compiled = collection_path.is_relative_to(COMPILED)
    return True if compiled == INTERPRETED else None


@pytest.fixture(scope="session")
def project_root() -> Path:
    return TESTS.parent

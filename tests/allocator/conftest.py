"""Every allocator test runs on both backends."""

import pytest

HELPERS = ("attention_model", "decoding", "machine", "pressed_arena", "rig")
pytest.register_assert_rewrite(*(f"tests.allocator.{name}" for name in HELPERS))


# Session scope, so that Hypothesis lets a test take it.
@pytest.fixture(params=["host", "triton"], scope="session")
def backend(request: pytest.FixtureRequest) -> str:
    return request.param

"""Every allocator test runs on both backends."""

import pytest

HELPERS = (
    "attention_model", "borrowing_machine", "decoding", "damage", "driver", "forwards",
    "hazard_machine", "in_flight", "lending_hazards", "lending_world", "machine", "pressed_arena",
    "refusing_machine", "replica", "rig", "traffic", "world",
)  # fmt: skip
pytest.register_assert_rewrite(*(f"tests.allocator.{name}" for name in HELPERS))


# Session scope, so that Hypothesis lets a test take it.
@pytest.fixture(params=["host", "triton"], scope="session")
def backend(request: pytest.FixtureRequest) -> str:
    return request.param

"""Every allocator test runs on both backends."""

import pytest


# Session scope, so that Hypothesis lets a test take it.
@pytest.fixture(params=["host", "triton"], scope="session")
def backend(request: pytest.FixtureRequest) -> str:
    return request.param

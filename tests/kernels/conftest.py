from collections.abc import Iterator

import pytest

from .interpreter import checked_overflow


# Not of function scope: hypothesis runs many examples in one call of a test.
@pytest.fixture(autouse=True, scope="module")
def overflow_raises() -> Iterator[None]:
    with checked_overflow():
        yield

from collections.abc import Iterator

import pytest

from .stand_in_driver import StandInDriver


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandInDriver]:
    """A stand-in GPU with nothing compiled yet; its launches keep to the x axis."""
    driver = StandInDriver()
    driver.install(monkeypatch)
    yield driver
    for launch in driver.launches:
        assert 1 <= launch.grid[0] <= 2**31 - 1, launch
        assert launch.grid[1:] == (1, 1), launch

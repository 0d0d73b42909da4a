"""How SGLang loads the plugin: on, off, not allowed, and beside a version that nobody checked."""

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points

import pytest
import sglang.version
from sglang.srt import plugins
from sglang.srt.mem_cache.allocator.unified_sub_pool import (
    FloatMultiEndedAllocator,
    MultiEndedAllocator,
)
from sglang.srt.plugins.hook_registry import HookRegistry

from kvdefrag.allocator import sglang_plugin
from kvdefrag.allocator.sglang_plugin import ALLOCATOR, HOOKS

from .worlds import STOCK

LOGGER = "kvdefrag.allocator.sglang_plugin"


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """SGLang's class and registry as before any plugin."""
    for name, method in STOCK.items():
        monkeypatch.setattr(MultiEndedAllocator, name, method)
    monkeypatch.setattr(plugins, "_plugins_loaded", False)
    monkeypatch.setattr(HookRegistry, "_hooks", type(HookRegistry._hooks)(list))
    monkeypatch.setattr(HookRegistry, "_patched", set())
    monkeypatch.delenv("SGLANG_PLUGINS", raising=False)
    return


def load(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Let SGLang load its plugins; returns our log lines."""
    with caplog.at_level(logging.INFO, LOGGER):
        plugins.load_plugins()
    return [record.getMessage() for record in caplog.records if record.name == LOGGER]


def hooked() -> set[str]:
    return {name for name in HOOKS if vars(MultiEndedAllocator)[name] is not STOCK[name]}


def test_entry_point_is_found() -> None:
    (found,) = entry_points(group=plugins.GENERAL_PLUGINS_GROUP, name="kvdefrag")
    assert found.load() is sglang_plugin.register


@pytest.mark.usefixtures("registry")
def test_on(caplog: pytest.LogCaptureFixture) -> None:
    assert load(caplog) == ["kvdefrag is on: it compacts the unified memory pool of SGLang 0.5.23"]
    assert hooked() == set(HOOKS)
    assert "_flush" in vars(FloatMultiEndedAllocator)


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize("switch", [None, "0", "", "true"])
def test_off(
    switch: str | None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KVDEFRAG_SGLANG")
    if switch is not None:
        monkeypatch.setenv("KVDEFRAG_SGLANG", switch)
    assert load(caplog) == ["kvdefrag is off: KVDEFRAG_SGLANG=1 switches it on"]
    assert hooked() == set()


@pytest.mark.usefixtures("registry")
def test_not_on_the_allow_list(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGLANG_PLUGINS", "none")
    assert load(caplog) == []
    assert hooked() == set()


@pytest.mark.usefixtures("registry")
def test_on_the_allow_list(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGLANG_PLUGINS", "other, kvdefrag")
    assert len(load(caplog)) == 1
    assert hooked() == set(HOOKS)


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize("version", ["0.5.22", "0.5.24", "0.5.23.post1", "0.0.0.dev0"])
def test_unknown_version_is_refused(
    version: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sglang.version, "__version__", version)
    assert load(caplog) == [
        f"kvdefrag refused: checked with SGLang 0.5.23, found {version}; SGLang compacts on its own"
    ]
    assert [record.levelname for record in caplog.records if record.name == LOGGER] == ["WARNING"]
    assert hooked() == set()
    assert not HookRegistry._hooks


def test_targets_are_methods_of_their_own() -> None:
    """A hook on an inherited method would land in the wrong class."""
    assert f"{MultiEndedAllocator.__module__}.{MultiEndedAllocator.__qualname__}" == ALLOCATOR
    assert set(HOOKS) <= set(vars(MultiEndedAllocator))


@pytest.mark.parametrize("switch", ["0", "1"])
def test_import_of_the_library_never_imports_sglang(switch: str) -> None:
    code = (
        "import sys, kvdefrag, kvdefrag.allocator.sglang_plugin as plugin\n"
        "print('sglang' in sys.modules)"
    )
    environment = {**os.environ, "KVDEFRAG_SGLANG": switch}
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert run.stdout == "False\n", run.stderr

"""The order of things: what the backend is asked to do, and when the stream waits."""

from collections.abc import Callable
from functools import partial
from typing import Any

from kvdefrag import Arena
from kvdefrag.allocator.testing import ManualFence

OPERATIONS = (
    "read_back", "upload", "gather_virtual", "move_pages", "rebind", "assign", "bind", "unbind",
    "translate", "translate_tokens",
)  # fmt: skip


class NotedFence(ManualFence):
    """A fence that writes ``query NAME`` and ``wait NAME`` into ``log``."""

    def __init__(
        self, log: list[str], name: str = "", work: Callable[[], None] | None = None
    ) -> None:
        super().__init__(work)
        self.log = log
        self.name = name

    def query(self) -> bool:
        self.log.append(f"query {self.name}".strip())
        return super().query()

    def wait(self) -> None:
        self.log.append(f"wait {self.name}".strip())
        super().wait()


def recorded(arena: Arena, monkeypatch: Any) -> list[str]:
    """From now on every operation of the arena's backend is noted in the list returned."""
    log: list[str] = []
    backend = arena._shared.backend

    def noting(name: str, operation: Any, *arguments: Any) -> Any:
        log.append(name)
        return operation(*arguments)

    for name in OPERATIONS:
        monkeypatch.setattr(backend, name, partial(noting, name, getattr(backend, name)))
    return log


def without_queries(log: list[str]) -> list[str]:
    """``log`` without the questions to fences."""
    return [entry for entry in log if not entry.startswith("query")]

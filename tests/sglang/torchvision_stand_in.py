"""An empty torchvision: SGLang imports it, and its wheel does not load beside a CPU torch."""

import importlib.util
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class _Anything(type):
    """A class that has every attribute."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls


class _Nothing(metaclass=_Anything):
    """Takes any argument and answers any call with itself."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        pass

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self


class _EmptyModule(ModuleType):
    __version__ = "0.28.0"
    __path__: list[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing


class _Finder(MetaPathFinder, Loader):
    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name.split(".")[0] != "torchvision":
            return None
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _EmptyModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def install() -> None:
    """Stand in for torchvision unless there is one."""
    if "torchvision" not in sys.modules and importlib.util.find_spec("torchvision") is None:
        sys.meta_path.append(_Finder())

"""The source tree keeps its architecture, and every check finds what it is for."""

from collections.abc import Callable
from pathlib import Path

import pytest

from . import architecture
from .architecture import (
    attribute_violations,
    direction_violations,
    docstring_violations,
    import_violations,
    scalar_read_violations,
    size_violations,
    spelling_violations,
)

Check = Callable[[Path], list[str]]

THIRTEEN = range(13)
ON_SELF = "class A:\n def __init__(self):\n" + "".join(f"  self.a{i} = 0\n" for i in THIRTEEN)
FIELDS = "".join(f" a{i}: int\n" for i in THIRTEEN)
METHOD = " def total(self):\n  return 0\n"

BAD = [
    (import_violations, "kernels/a.py", "from kvdefrag.allocator import Arena"),
    (import_violations, "kernels/a.py", "from kvdefrag import allocator"),
    (import_violations, "kernels/a.py", "import kvdefrag"),
    (import_violations, "kernels/a.py", "def f():\n    import kvdefrag.perf"),
    (import_violations, "kernels/a.py", "from ..allocator import Arena"),
    (import_violations, "kernels/a.py", "from kvdefrag.kernels.copy import copy_pages"),
    (import_violations, "kernels/a.py", "import rich"),
    (import_violations, "allocator/a.py", "from kvdefrag.perf import replay"),
    (import_violations, "allocator/a.py", "from kvdefrag import Arena"),
    (import_violations, "allocator/a.py", "import kernels"),
    (import_violations, "allocator/plan.py", "import torch.cuda"),
    (import_violations, "allocator/sglang_flush.py", "def f():\n    import sglang"),
    (import_violations, "allocator/testing.py", "from pytest import fixture"),
    (import_violations, "allocator/_facade/__init__.py", "from .arena import Arena"),
    (import_violations, "perf/a.py", "from ..allocator import Arena"),
    (import_violations, "perf/a.py", "from allocator.arena import Arena"),
    (import_violations, "tests/perf/test_a.py", "from ...perf import replay"),
    (size_violations, "kernels/a.py", "pass\n" * 301),
    (size_violations, "tests/test_a.py", "def f():\n" + "    pass\n" * 50),
    (size_violations, "perf/a.py", "class A:\n def f(self):\n" + "  pass\n" * 50),
    (attribute_violations, "allocator/a.py", ON_SELF),
    (attribute_violations, "allocator/a.py", "@dataclass\nclass A:\n" + FIELDS),
    (
        attribute_violations,
        "allocator/a.py",
        "@dataclass(frozen=True)\nclass A:\n" + FIELDS + METHOD,
    ),
    (attribute_violations, "perf/a.py", f"class A:\n __slots__ = {[f'a{i}' for i in THIRTEEN]}"),
    (direction_violations, "allocator/a.py", "x = 1 if side == 'up' else 2"),
    (direction_violations, "allocator/a.py", "def f(x: Literal['down']): ..."),
    (direction_violations, "allocator/a.py", "x = spec.grows"),
    (scalar_read_violations, "allocator/a.py", "x = free_pages.item()"),
    (scalar_read_violations, "allocator/a.py", "def f_host():\n    pass\nx = torch.unique(y)"),
    (scalar_read_violations, "kernels/a.py", "def f():\n    return [ids.nonzero(), ids.tolist()]"),
    (docstring_violations, "kernels/a.py", "def rebind(): ..."),
    (docstring_violations, "allocator/a.py", "class Arena: ..."),
    (docstring_violations, "allocator/a.py", "class A:\n 'Doc.'\n def alloc(self): ..."),
    (spelling_violations, "README.md", "TO" + "DO: say more"),
    (spelling_violations, ".ci/run", "cd /" + "tmp/build"),
    (spelling_violations, "perf/a.html", "https://pypi" + ".org/simple"),
]

GOOD = [
    (import_violations, "kernels/a.py", "import math\nimport torch\nfrom .bind import bind"),
    (
        import_violations,
        "allocator/a.py",
        "from kvdefrag.kernels import bind\nfrom kvdefrag import kernels",
    ),
    (import_violations, "allocator/_facade/__init__.py", "from kvdefrag.allocator import Arena"),
    (import_violations, "allocator/sglang_plugin.py", "from sglang.version import __version__"),
    (
        import_violations,
        "perf/a.py",
        "import rich\nfrom kvdefrag import Arena\nfrom .model import Engine",
    ),
    (import_violations, "perf/bench_a.py", "from kvdefrag.perf.model import Engine"),
    (import_violations, "tests/perf/test_a.py", "from ..architecture import CHECKS"),
    (size_violations, "kernels/a.py", "def f():\n" + "    pass\n" * 49 + "pass\n" * 250),
    (attribute_violations, "allocator/a.py", "@dataclass(frozen=True)\nclass A:\n" + FIELDS),
    (
        attribute_violations,
        "allocator/a.py",
        "class A(NamedTuple):\n" + FIELDS + " @property\n" + METHOD,
    ),
    (direction_violations, "allocator/geometry.py", "up = spec.grows == 'up'"),
    (direction_violations, "allocator/a.py", "'''Pages move up.'''"),
    (scalar_read_violations, "allocator/snapshot.py", "holes = pinned.tolist()"),
    (scalar_read_violations, "kernels/a.py", "def bind_host():\n    return ids.tolist()"),
    (
        docstring_violations,
        "kernels/a.py",
        "def _rebind_kernel(): ...\nclass _A:\n def f(self): ...",
    ),
    (spelling_violations, "build/a.py", "TO" + "DO"),
]


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


@pytest.mark.parametrize("check", architecture.CHECKS)
def test_source_tree_is_clean(check: Check, project_root: Path) -> None:
    assert check(project_root) == []


def test_every_folder_is_read(project_root: Path) -> None:
    read = {module.folder for module in architecture.modules(project_root)}
    assert read == {*architecture.FOLDERS, architecture.FACADE}


@pytest.mark.parametrize(("check", "path", "text"), BAD)
def test_check_finds(check: Check, path: str, text: str, tmp_path: Path) -> None:
    write(tmp_path, path, text)
    found = check(tmp_path)
    assert len(found) >= 1
    assert all(line.startswith(path) for line in found)


@pytest.mark.parametrize(("check", "path", "text"), GOOD)
def test_check_accepts(check: Check, path: str, text: str, tmp_path: Path) -> None:
    write(tmp_path, path, text)
    assert check(tmp_path) == []


def test_binary_files_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"\xff TO" + b"DO")
    assert spelling_violations(tmp_path) == []


def test_every_check_is_proven() -> None:
    assert {check for check, _, _ in BAD} == {check for check, _, _ in GOOD}
    assert {check for check, _, _ in BAD} == set(architecture.CHECKS)

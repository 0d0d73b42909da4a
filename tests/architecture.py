"""The architecture, read from the source.

Every check takes the root of a source tree and returns the violations in it, one line each.
"""

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

FOLDERS = ("kernels", "allocator", "perf", "tests")
LIBRARY = ("kernels", "allocator")
PACKAGE = "kvdefrag"
FACADE = "allocator/_facade"

FILE_LINES = 300
FUNCTION_LINES = 50
CLASS_ATTRIBUTES = 12

MAY_IMPORT = {
    "kernels": set(),
    "allocator": {"kernels"},
    FACADE: {"allocator"},
    "perf": {"kernels", "allocator", PACKAGE},
    "tests": {"kernels", "allocator", "perf", PACKAGE},
}
LIBRARY_DEPENDENCIES = {"numpy", "torch", "triton"}
MAY_ALSO_IMPORT = {"allocator/sglang_plugin.py": {"sglang"}}
FORBIDDEN_IMPORTS = {
    "allocator/plan.py": {"torch", "triton"},
    "allocator/testing.py": {"pytest", "hypothesis"},
}
# pytest imports these by path, so relative imports do not reach their folder.
COLLECTED_BY_PYTEST = ("bench_", "test_", "conftest")

DIRECTIONS_FILE = "allocator/geometry.py"
SCALAR_READS = {"item", "tolist", "nonzero", "unique", "cpu"}
MAY_READ_SCALARS = {
    "host",
    "snapshot",
    "invariants",
    "plan",
    "rebuild",
    "repair",
    "survey",
    "debug",
    "faults",
    "testing",
}

# Put together here, so that this file passes its own check.
MARKS = r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X")) + r")\b"
MACHINE_PATHS = "/(" + "|".join(("work", "tmp", "root", "home")) + ")/"
REGISTRIES = "|".join(
    name.replace(" ", r"\.")
    for name in ("pypi org", "pythonhosted org", "npmjs org", "download pytorch org", "debian org")
)
BANNED_SPELLINGS = re.compile("|".join((MARKS, MACHINE_PATHS, REGISTRIES)))

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


class Module(NamedTuple):
    path: str
    text: str
    tree: ast.Module

    @property
    def top(self) -> str:
        return self.path.split("/")[0]

    @property
    def folder(self) -> str:
        return FACADE if self.path.startswith(FACADE + "/") else self.top

    @property
    def stem(self) -> str:
        return Path(self.path).stem

    def at(self, node: ast.AST, message: str) -> str:
        return f"{self.path}:{node.lineno}: {message}"


def modules(root: Path, folders: tuple[str, ...] = FOLDERS) -> list[Module]:
    paths = [path for folder in folders for path in sorted((root / folder).rglob("*.py"))]
    return [
        Module(path.relative_to(root).as_posix(), text, ast.parse(text))
        for path in paths
        for text in [path.read_text()]
    ]


def imported_names(node: ast.AST) -> list[str]:
    """Absolute dotted names that a statement imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
        if node.module == PACKAGE:
            siblings = {alias.name for alias in node.names if alias.name in FOLDERS}
            others = len(siblings) < len(node.names)
            return [f"{PACKAGE}.{name}" for name in sorted(siblings)] + [PACKAGE] * others
        return [node.module]
    return []


def sibling(name: str) -> str | None:
    """The part of the package that a dotted name lies in; None for a foreign name."""
    top, _, rest = name.partition(".")
    if top != PACKAGE:
        return None
    return rest.split(".")[0] or PACKAGE


def import_fault(module: Module, name: str) -> str | None:
    top, part = name.split(".")[0], sibling(name)
    if top in FOLDERS:
        return f"imports {name} without its package"
    if top in FORBIDDEN_IMPORTS.get(module.path, ()):
        return f"imports {top}"
    if part is None:
        known = LIBRARY_DEPENDENCIES | sys.stdlib_module_names
        known |= MAY_ALSO_IMPORT.get(module.path, set())
        return f"imports {top}" if module.top in LIBRARY and top not in known else None
    if part == module.folder:
        by_path = module.stem.startswith(COLLECTED_BY_PYTEST)
        return None if by_path else f"absolute import of {name} inside {part}"
    return None if part in MAY_IMPORT[module.folder] else f"{module.folder} imports {name}"


def import_violations(root: Path) -> list[str]:
    found = []
    for module in modules(root):
        depth = 0 if module.folder == FACADE else module.path.count("/")
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ImportFrom) and node.level > depth:
                found.append(module.at(node, f"relative import leaves {module.folder}"))
            faults = (import_fault(module, name) for name in imported_names(node))
            found += [module.at(node, fault) for fault in faults if fault]
    return found


def size_violations(root: Path) -> list[str]:
    found = []
    for module in modules(root):
        if (count := len(module.text.splitlines())) > FILE_LINES:
            found.append(f"{module.path}: {count} lines")
        for node in ast.walk(module.tree):
            if isinstance(node, FunctionNode):
                count = node.end_lineno - node.lineno + 1
                if count > FUNCTION_LINES:
                    found.append(module.at(node, f"{node.name} has {count} lines"))
    return found


def decorator_names(node: FunctionNode | ast.ClassDef) -> set[str]:
    return {ast.unparse(item).split("(")[0].split(".")[-1] for item in node.decorator_list}


def is_record(node: ast.ClassDef) -> bool:
    """A frozen dataclass or a NamedTuple without methods, properties apart."""
    frozen = any(
        ast.unparse(item).split("(")[0].endswith("dataclass") and "frozen=True" in ast.unparse(item)
        for item in node.decorator_list
    )
    named_tuple = any(ast.unparse(base).endswith("NamedTuple") for base in node.bases)
    methods = [item for item in node.body if isinstance(item, FunctionNode)]
    plain = all(decorator_names(item) & {"property", "cached_property"} for item in methods)
    return (frozen or named_tuple) and plain


def self_targets(method: FunctionNode) -> set[str]:
    arguments = [*method.args.posonlyargs, *method.args.args]
    if not arguments:
        return set()
    return {
        node.attr
        for node in ast.walk(method)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == arguments[0].arg
    }


def attributes(node: ast.ClassDef) -> set[str]:
    """Names assigned on self, named in __slots__, or annotated in the body as fields."""
    names: set[str] = set()
    for item in node.body:
        if isinstance(item, FunctionNode):
            names |= self_targets(item)
        elif isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            if "ClassVar" not in ast.unparse(item.annotation):
                names.add(item.target.id)
        elif isinstance(item, ast.Assign) and ast.unparse(item.targets[0]) == "__slots__":
            slots = ast.literal_eval(item.value)
            names |= {slots} if isinstance(slots, str) else set(slots)
    return names


def attribute_violations(root: Path) -> list[str]:
    return [
        module.at(node, f"{node.name} has {len(attributes(node))} attributes")
        for module in modules(root)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef)
        and not is_record(node)
        and len(attributes(node)) > CLASS_ATTRIBUTES
    ]


def direction_violations(root: Path) -> list[str]:
    found = []
    for module in modules(root, ("allocator",)):
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Constant) and node.value in ("up", "down"):
                found.append(module.at(node, f"names the direction {node.value!r}"))
            if isinstance(node, ast.Attribute) and node.attr == "grows":
                found.append(module.at(node, "reads grows"))
    return [line for line in found if not line.startswith(DIRECTIONS_FILE)]


def walk_outside_host_twins(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, FunctionNode) and node.name.endswith("_host"):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from walk_outside_host_twins(child)


def scalar_read_violations(root: Path) -> list[str]:
    return [
        module.at(node, f"calls {node.func.attr}")
        for module in modules(root, LIBRARY)
        if module.stem not in MAY_READ_SCALARS
        for node in walk_outside_host_twins(module.tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in SCALAR_READS
    ]


def docstring_violations(root: Path) -> list[str]:
    found = []
    for module in modules(root, LIBRARY):
        classes = [node for node in module.tree.body if isinstance(node, ast.ClassDef)]
        bodies = [module.tree.body, *(c.body for c in classes if not c.name.startswith("_"))]
        for node in [node for body in bodies for node in body]:
            if not isinstance(node, FunctionNode | ast.ClassDef) or node.name.startswith("_"):
                continue
            if not ast.get_docstring(node) and not decorator_names(node) & {"overload", "setter"}:
                found.append(module.at(node, f"{node.name} has no docstring"))
    return found


def is_generated(path: Path) -> bool:
    hidden = any(part.startswith(".") and part != ".ci" for part in path.parts[:-1])
    made = {"build", "dist", "venv", "__pycache__"}.intersection(path.parts)
    return bool(hidden or made or any(part.endswith(".egg-info") for part in path.parts))


def project_files(root: Path) -> list[Path]:
    """What git tracks; where that is not known, every file that no tool has made."""
    if shutil.which("git"):
        listing = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True)
        if tracked := listing.stdout.decode().split("\0")[:-1]:
            return [root / name for name in tracked if (root / name).is_file()]
    found = (path for path in sorted(root.rglob("*")) if path.is_file())
    return [path for path in found if not is_generated(path.relative_to(root))]


def spelling_violations(root: Path) -> list[str]:
    found = []
    for path in project_files(root):
        try:
            lines = path.read_text().splitlines()
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(lines, 1):
            if match := BANNED_SPELLINGS.search(line):
                found.append(f"{path.relative_to(root).as_posix()}:{number}: {match[0]}")
    return found


CHECKS = (
    import_violations,
    size_violations,
    attribute_violations,
    direction_violations,
    scalar_read_violations,
    docstring_violations,
    spelling_violations,
)

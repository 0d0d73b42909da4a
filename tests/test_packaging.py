"""What a wheel holds, and what an installed copy can import."""

import shutil
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

PACKAGES = ("kvdefrag", "kvdefrag/kernels", "kvdefrag/allocator", "kvdefrag/perf")
LEFT_OUT = (".*", "build", "dist", "*.egg-info", "__pycache__")


def run_python(*arguments: str, cwd: Path, path: Path | None = None) -> str:
    environment = {"PYTHONPATH": str(path)} if path else None
    result = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout.strip()


@pytest.fixture(scope="module")
def wheel(project_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = tmp_path_factory.mktemp("wheel")
    shutil.copytree(project_root, work / "source", ignore=shutil.ignore_patterns(*LEFT_OUT))
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", "out"]
    run_python("-m", "pip", "wheel", *options, "./source", cwd=work)
    (built,) = (work / "out").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    zipfile.ZipFile(wheel).extractall(target)
    return target


def test_wheel_holds_the_package_alone(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"kvdefrag"}
    assert not [name for name in names if "_facade" in name or "test_" in name]


@pytest.mark.parametrize("package", PACKAGES)
def test_wheel_marks_every_package_as_typed(wheel: Path, package: str) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert f"{package}/__init__.py" in names
    assert f"{package}/py.typed" in names


def test_every_module_is_in_the_wheel(wheel: Path, project_root: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder in ("kernels", "allocator", "perf"):
        modules = {path.name for path in (project_root / folder).glob("*.py")}
        assert {f"kvdefrag/{folder}/{name}" for name in modules} <= names


def test_metadata_states_version_and_license(site: Path) -> None:
    (metadata,) = site.glob("kvdefrag-*.dist-info/METADATA")
    fields = Parser().parsestr(metadata.read_text())
    imported = run_python("-c", "import kvdefrag; print(kvdefrag.__version__)", cwd=site)
    assert fields["Version"] == imported
    assert fields["License-Expression"] == "Apache-2.0"
    assert list(site.glob("kvdefrag-*.dist-info/licenses/LICENSE"))


def test_package_imports_from_an_empty_folder(site: Path, tmp_path: Path) -> None:
    code = "import kvdefrag, kvdefrag.kernels, kvdefrag.allocator; print(kvdefrag.__file__)"
    found = run_python("-c", code, cwd=tmp_path, path=site)
    assert Path(found) == site / "kvdefrag" / "__init__.py"


def test_import_loads_nothing_of_perf(site: Path, tmp_path: Path) -> None:
    names = "{'kvdefrag.perf', 'click', 'rich', 'jsonschema', 'plotly', 'jinja2', 'pytest'}"
    code = f"import sys, kvdefrag; print(sorted({names} & set(sys.modules)))"
    assert run_python("-c", code, cwd=tmp_path, path=site) == "[]"


@pytest.mark.parametrize("name", ["kernels", "allocator", "perf", "_facade"])
def test_folders_are_not_importable_bare(name: str, site: Path, tmp_path: Path) -> None:
    code = f"import importlib.util; print(importlib.util.find_spec({name!r}))"
    assert run_python("-c", code, cwd=tmp_path, path=site) == "None"
    assert run_python("-c", code, cwd=tmp_path) == "None"

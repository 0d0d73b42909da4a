"""Check kvdefrag on the GPU at hand, then time it: ``make gpu-check``.

Runs from a checkout, installed or not, with torch, triton and numpy alone, and writes one JSON.
Without a GPU it says so and exits 0. Exits 1 if a correctness check failed; a missed speed target
is printed and no more.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

FOLDERS = {
    "kvdefrag": os.path.join("allocator", "_facade"),
    "kvdefrag.kernels": "kernels",
    "kvdefrag.allocator": "allocator",
    "kvdefrag.perf": "perf",
}
"""Where the packages are in a checkout, as in ``pyproject.toml``."""

GPU_FILE = "/dev/nvidiactl"
"""There if the machine has an NVIDIA GPU and a driver, whatever this Python has."""


class CheckoutFinder(MetaPathFinder):
    """Finds the packages in their folders, ahead of an installed copy."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The spec of one of the four packages; their modules are found by their paths."""
        if fullname not in FOLDERS:
            return None
        folder = os.path.join(ROOT, FOLDERS[fullname])
        return importlib.util.spec_from_file_location(
            fullname, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
        )


def import_from_checkout() -> None:
    """Make ``kvdefrag`` importable, and the folders not: ``kernels`` is another distribution."""
    hidden = {os.path.realpath(folder) for folder in (ROOT, os.path.join(ROOT, "perf"))}
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry or ".") not in hidden]
    sys.meta_path.insert(0, CheckoutFinder())


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status."""
    options = _parse(arguments)
    on_gpu = options.device == "cuda"
    # Triton reads it when a kernel is declared, which the imports below do.
    os.environ["TRITON_INTERPRET"] = "0" if on_gpu else "1"
    if on_gpu and (reason := _why_no_gpu()):
        print(f"gpu-check: nothing was checked, {reason}")
        return 2 if "no torch" in reason and os.path.exists(GPU_FILE) else 0
    runner = importlib.import_module("kvdefrag.perf.gpu_check_run")
    if options.sanitized:
        return int(runner.run_sanitized(options.device))
    return int(runner.run(options.device, options.minutes * 60, options.out, ROOT))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gpu_check.py", description=__doc__)
    parser.add_argument(
        "--out", metavar="FILE", help="the JSON; by default perf/results/DEVICE-DATE.json"
    )
    parser.add_argument(
        "--minutes", type=float, default=8.0, help="stop measuring when they are near (8)"
    )
    # Triton's interpreter on tiny sizes, for the tests of this script.
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help=argparse.SUPPRESS)
    # What compute-sanitizer is given to run.
    parser.add_argument("--sanitized", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def _why_no_gpu() -> str | None:
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        return f"this Python has no torch ({error})"
    if not torch.cuda.is_available():
        return f"there is no GPU that torch {torch.__version__} can use"
    return None


if __name__ == "__main__":
    if not __package__:
        import_from_checkout()
    raise SystemExit(main())

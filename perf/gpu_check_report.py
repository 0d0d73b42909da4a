"""What a GPU check found: checks, figures, targets, and what was left out, as one JSON."""

from __future__ import annotations

import json
import re
import statistics
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

FORMAT = 1

Case = dict[str, Any]
"""What a figure was measured on: page bytes, moves, and so on."""

ERROR_CHARACTERS = 800


class Wrong(AssertionError):
    """A result is not what it must be."""


def require(condition: bool, finding: str) -> None:
    """Raise Wrong with ``finding`` unless ``condition`` holds."""
    if not condition:
        raise Wrong(finding)


class Report:
    """Collects results as they come; one that fails is noted and does not stop the others.

    ``facts``: device and software. ``seconds``: the time after which nothing more is begun.
    """

    def __init__(self, facts: dict[str, Any], seconds: float) -> None:
        self.facts = facts
        self.checks: list[dict[str, Any]] = []
        self.figures: list[dict[str, Any]] = []
        self.targets: list[dict[str, Any]] = []
        self.skipped: list[dict[str, str]] = []
        self.left_out: list[str] = []
        self.errors: list[dict[str, str]] = []
        self.section_seconds: dict[str, float] = {}
        self._started = monotonic()
        self._seconds = seconds

    @property
    def passed(self) -> bool:
        """Whether no correctness check failed."""
        return all(check["passed"] for check in self.checks)

    @property
    def seconds_left(self) -> float:
        """Of the budget."""
        return self._seconds - (monotonic() - self._started)

    def time_for(self, name: str, seconds: float) -> bool:
        """Whether ``seconds`` more fit the budget; if not, ``name`` is noted as left out."""
        if self.seconds_left >= seconds:
            return True
        self.left_out.append(name)
        return False

    @contextmanager
    def check(self, name: str) -> Iterator[None]:
        """A correctness check: it fails if the block raises."""
        try:
            yield
        except Exception as error:
            self.checks.append({"name": name, "passed": False, "detail": describe(error)})
            print(f"  FAILED {name}: {describe(error)}", flush=True)
        else:
            self.checks.append({"name": name, "passed": True, "detail": ""})

    @contextmanager
    def measurement(self, name: str) -> Iterator[None]:
        """A measurement: an error ends it alone. A wrong result is a failed check as well."""
        try:
            yield
        except Wrong as error:
            self.checks.append({"name": name, "passed": False, "detail": describe(error)})
            print(f"  WRONG {name}: {describe(error)}", flush=True)
        except Exception as error:
            self.errors.append({"name": name, "error": describe(error)})
            print(f"  not measured: {name}: {describe(error)}", flush=True)

    def skip(self, name: str, reason: str) -> None:
        """Note what this machine cannot do."""
        self.skipped.append({"name": name, "reason": reason})

    def figure(
        self, group: str, case: Case, what: str, unit: str, samples: Sequence[float]
    ) -> float:
        """Keep the median of ``samples`` of a result that has been verified; returns it."""
        value = statistics.median(samples)
        ordered = sorted(samples)
        self.figures.append(
            {
                "group": group,
                "case": case,
                "what": what,
                "value": round(value, 3),
                "unit": unit,
                "verified": True,
                "low": round(ordered[len(ordered) // 5], 3),
                "high": round(ordered[len(ordered) - 1 - len(ordered) // 5], 3),
                "rounds": len(ordered),
            }
        )
        return value

    def unverified(self, group: str, case: Case, what: str, unit: str, finding: str) -> None:
        """Note a figure that was not kept, since its result is wrong: a failed check."""
        figure = {"group": group, "case": case, "what": what, "value": None, "unit": unit}
        self.figures.append({**figure, "verified": False})
        with self.check(f"{group}: {what} {case}"):
            raise Wrong(finding)

    def target(self, name: str, wanted: float, measured: float, unit: str, at_least: bool) -> None:
        """Hold a figure against what it should be."""
        passed = measured >= wanted if at_least else measured <= wanted
        self.targets.append(
            {
                "name": name,
                "wanted": wanted,
                "bound": "at least" if at_least else "at most",
                "measured": round(measured, 3),
                "unit": unit,
                "passed": passed,
            }
        )

    def value(self, group: str, case: Case, what: str) -> float | None:
        """A figure kept before."""
        for figure in self.figures:
            if (figure["group"], figure["case"], figure["what"]) == (group, case, what):
                value: float | None = figure["value"]
                return value
        return None

    def as_dict(self) -> dict[str, Any]:
        """What the JSON holds."""
        return {
            "format": FORMAT,
            **self.facts,
            "elapsed_s": round(monotonic() - self._started, 1),
            "budget_s": self._seconds,
            "section_seconds": self.section_seconds,
            "passed": self.passed,
            "targets": self.targets,
            "figures": self.figures,
            "checks": self.checks,
            "skipped": self.skipped,
            "left_out": self.left_out,
            "errors": self.errors,
        }

    def write(self, path: Path) -> None:
        """Write the JSON, whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(path.name + ".part")
        partial.write_text(json.dumps(self.as_dict(), indent=1) + "\n")
        partial.replace(path)


def describe(error: BaseException) -> str:
    """Type, text and place of an error, without the folders of this machine."""
    lines = str(error).strip() or "no message"
    text = without_folders(f"{type(error).__name__}: {lines}")[:ERROR_CHARACTERS]
    frames = traceback.extract_tb(error.__traceback__)
    where = f" [{Path(frames[-1].filename).name}:{frames[-1].lineno}]" if frames else ""
    return text + where


def without_folders(text: str) -> str:
    """``text`` with every absolute path cut down to its last part."""
    return re.sub(r"(?<![\w.])(?:/[\w.+~@-]+)+/", "", text)

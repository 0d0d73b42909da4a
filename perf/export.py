"""A benchmark record in the shapes that dashboards elsewhere read; interpreter rows stay out."""

from __future__ import annotations

from typing import Any

from .benchmark_record import Record, Row
from .result_files import ResultError, schema_finding

Entry = dict[str, Any]

GITHUB, HUD = "github", "hud"

FIGURES = (
    "paired_ratio_p50",
    "gbps",
    "bytes_moved",
    "pages_moved",
    "launches",
    "d2h",
    "h2d",
)
"""Of ``extra_info``, beside the median: what becomes a metric of its own for the HUD."""

PARAMETERS = ("holes", "moves", "page_bytes", "fragmentation", "device")
REPOSITORIES = {"torch": "pytorch/pytorch", "triton": "triton-lang/triton"}


def github_entries(record: Record) -> list[Entry]:
    """For github-action-benchmark, as `customSmallerIsBetter`: medians in microseconds."""
    return [
        {
            "name": row.name,
            "unit": "us",
            "value": row.median_us,
            "range": f"{row.low_us:.3f} to {row.high_us:.3f}",
            "extra": "\n".join(
                f"{name}: {value}"
                for name, value in (
                    ("rounds", row.rounds),
                    ("contender", row.contender),
                    *row.extra.items(),
                )
            ),
        }
        for row in record.measured
    ]


def hud_records(record: Record) -> list[Entry]:
    """For the PyTorch HUD, `oss_ci_benchmark_v3`: one record for every metric of every row."""
    return [
        _hud_record(record, row, name, value)
        for row in record.measured
        for name, value in _metrics(row)
    ]


SHAPES = {GITHUB: github_entries, HUD: hud_records}


def export_record(record: Record, shape: str) -> list[Entry]:
    """The entries of one shape, checked against its schema."""
    entries = SHAPES[shape](record)
    finding = schema_finding("export_schemas.json", shape, entries)
    if finding:
        raise ResultError(f"{record.name}: does not fit the {shape} shape: {finding}")
    return entries


def _metrics(row: Row) -> list[tuple[str, float]]:
    figures = [(name, row.number(name)) for name in FIGURES]
    return [
        ("median_us", row.median_us),
        *((name, value) for name, value in figures if value is not None),
    ]


def _hud_record(record: Record, row: Row, metric: str, value: float) -> Entry:
    parameters = {name: row.extra[name] for name in PARAMETERS if row.extra.get(name) is not None}
    device = str(row.extra.get("device", "cpu"))
    runner = {"cpu_info": record.cpu, "cpu_count": record.cpu_count}
    if device != "cpu":
        runner.update(gpu_info=device, gpu_count=1)
    return {
        "benchmark": {
            "name": "kvdefrag",
            "extra_info": {
                "layer": row.layer,
                "contender": row.contender,
                "commit": record.commit,
                **{name: str(parameter) for name, parameter in parameters.items()},
            },
        },
        "model": {
            "name": row.name,
            "type": row.layer,
            "backend": str(row.extra.get("backend", "")),
            "origins": ["kvdefrag"],
        },
        "metric": {
            "name": metric,
            "benchmark_values": [value],
            "extra_info": {"rounds": str(row.rounds)},
        },
        "runners": [runner],
        "dependencies": {
            name: {"repo": repository, "version": str(row.extra[name])}
            for name, repository in REPOSITORIES.items()
            if name in row.extra
        },
    }

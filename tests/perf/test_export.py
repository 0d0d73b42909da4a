import json

import pytest
from click.testing import CliRunner

from kvdefrag.perf.__main__ import main
from kvdefrag.perf.benchmark_record import as_record
from kvdefrag.perf.export import GITHUB, HUD, SHAPES, export_record
from kvdefrag.perf.result_files import RECORD, ResultError, ResultFile, schema_finding

from . import made_up_results as made_up


def record_of(**fields):
    return as_record(ResultFile(RECORD, "record.json", made_up.record(**fields)))


@pytest.fixture
def exported(tmp_path):
    """Run the command on a made-up record; the result and the files it wrote, by name."""

    def run(content, *options):
        path = tmp_path / "record.json"
        path.write_text(json.dumps(content))
        out = tmp_path / "out"
        out.mkdir(exist_ok=True)
        result = CliRunner().invoke(main, ["export", str(path), f"--out={out}", *options])
        return result, {file.name: json.loads(file.read_text()) for file in out.iterdir()}

    return run


def test_both_files_are_written(exported):
    result, files = exported(made_up.record())
    assert result.exit_code == 0, result.output
    assert set(files) == {
        "record.github-action-benchmark.json",
        "record.oss_ci_benchmark_v3.json",
    }


@pytest.mark.parametrize("shape", [GITHUB, HUD])
def test_one_file_can_be_chosen(exported, shape):
    _, files = exported(made_up.record(), f"--format={shape}")
    assert len(files) == 1


def test_github_entries_hold_the_medians(exported):
    content = made_up.record()
    _, files = exported(content, "--format=github")
    (entries,) = files.values()
    assert [(entry["unit"], entry["value"]) for entry in entries] == [
        ("us", row["stats"]["median"] * 1e6) for row in content["benchmarks"]
    ]
    assert len({entry["name"] for entry in entries}) == len(entries)
    assert "holes: 1\n" in entries[0]["extra"]


def test_hud_records_hold_every_metric(exported):
    content = made_up.record(rows=[made_up.flush_row("kvdefrag", 16, 65536, 0, gbps=1.5)])
    _, files = exported(content, "--format=hud")
    (records,) = files.values()
    values = {record["metric"]["name"]: record["metric"]["benchmark_values"] for record in records}
    median_us = content["benchmarks"][0]["stats"]["median"] * 1e6
    assert values == {
        "median_us": [median_us],
        "paired_ratio_p50": [2.5],
        "gbps": [1.5],
        "d2h": [1],
    }
    first = records[0]
    assert first["benchmark"]["extra_info"]["holes"] == "16"
    assert first["benchmark"]["extra_info"]["commit"] == "a" * 10
    assert first["model"]["type"] == "flush"
    assert first["dependencies"] == {"torch": {"repo": "pytorch/pytorch", "version": "9.9.9"}}
    assert first["runners"] == [{"cpu_info": "Made-up CPU", "cpu_count": 2}]


def test_a_gpu_is_named_as_runner():
    rows = [made_up.flush_row("kvdefrag", 16, 65536, 0, device="NVIDIA H200", backend="triton")]
    (first, *_) = export_record(record_of(rows=rows), HUD)
    assert first["runners"][0]["gpu_info"] == "NVIDIA H200"
    assert first["model"]["backend"] == "triton"


@pytest.mark.parametrize("shape", [GITHUB, HUD])
def test_interpreter_rows_stay_out(exported, shape):
    rows = [made_up.flush_row("kvdefrag", 16, 65536, 0), made_up.interpreted_row()]
    result, files = exported(made_up.record(rows=rows), f"--format={shape}")
    assert "interpreted" not in json.dumps(files)
    assert "left out: 1 rows" in result.output


def test_a_record_of_the_interpreter_alone_is_refused(exported):
    result, files = exported(made_up.record(rows=[made_up.interpreted_row()]))
    assert result.exit_code == 2
    assert not files


def test_no_host_name_leaves_the_machine(exported):
    _, files = exported(made_up.record())
    assert "secret-host" not in json.dumps(files)


GITHUB_ENTRY = {"name": "a", "unit": "us", "value": 1.0}
HUD_RECORD = {
    "benchmark": {"name": "a"},
    "model": {"name": "a"},
    "metric": {"name": "a", "benchmark_values": [1.0]},
    "dependencies": {},
}


@pytest.mark.parametrize(
    ("shape", "entry", "change"),
    [
        (GITHUB, GITHUB_ENTRY, {"value": "1"}),
        (GITHUB, GITHUB_ENTRY, {"name": ""}),
        (GITHUB, GITHUB_ENTRY, {"unknown": 1}),
        (HUD, HUD_RECORD, {"metric": {"name": "a", "benchmark_values": []}}),
        (HUD, HUD_RECORD, {"metric": {"name": "a", "benchmark_values": ["1"]}}),
        (HUD, HUD_RECORD, {"benchmark": {"name": "a", "extra_info": {"holes": 16}}}),
        (HUD, HUD_RECORD, {"model": {}}),
        (HUD, HUD_RECORD, {"dependencies": {"torch": {"version": 2}}}),
    ],
)
def test_the_schemas_refuse_other_shapes(shape, entry, change):
    assert schema_finding("export_schemas.json", shape, [entry]) == ""
    assert schema_finding("export_schemas.json", shape, [{**entry, **change}])


def test_what_does_not_fit_is_not_written(monkeypatch):
    monkeypatch.setitem(SHAPES, GITHUB, lambda record: [{"name": "a"}])
    with pytest.raises(ResultError, match="does not fit the github shape"):
        export_record(record_of(), GITHUB)

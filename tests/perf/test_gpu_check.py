import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch

from kvdefrag.perf import gpu_check, gpu_check_run
from kvdefrag.perf import gpu_check_busy as busy
from kvdefrag.perf.gpu_check_bandwidth import GROUP, OURS, SHARE, set_targets
from kvdefrag.perf.gpu_check_machine import default_path
from kvdefrag.perf.gpu_check_report import Report, Wrong, describe, without_folders
from kvdefrag.perf.gpu_check_sizes import ALL_PAGE_BYTES, ON_A_GPU
from kvdefrag.perf.gpu_check_table import table

SECTIONS = (
    "prewarm", "forwards in flight", "host time beside a busy device", "lockstep", "faults",
    "kernels against twins", "tokens against twins", "growth against twins",
    "borrowed ids against twins", "copies against twins",
    "copy bandwidth", "urgent flush", "host time of calls", "table kernels", "tile sweep",
)  # fmt: skip


def run_script(project_root, folder, *arguments, with_torch=True):
    """Runs the script from `folder` with a Python that has no kvdefrag and sees no GPU."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "TRITON_INTERPRET": "0"}
    environment.pop("PYTHONPATH", None)
    if with_torch:
        # A folder on the path is not searched for the .pth file of an editable install.
        environment["PYTHONPATH"] = sysconfig.get_path("purelib")
    command = [sys.executable, "-S", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def script(project_root):
    return str(project_root / "perf" / "gpu_check.py")


@pytest.fixture(scope="module")
def whole_run(project_root, script, tmp_path_factory):
    folder = tmp_path_factory.mktemp("elsewhere")
    out = folder / "made" / "found.json"
    done = run_script(project_root, folder, script, "--device", "cpu", "--out", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, json.loads(out.read_text()), out


def test_there_is_no_kvdefrag_to_import(project_root, tmp_path):
    done = run_script(project_root, tmp_path, "-c", "import numpy, kvdefrag")
    assert "No module named 'kvdefrag'" in done.stderr


def test_without_a_gpu_it_says_so(project_root, script, tmp_path):
    done = run_script(project_root, tmp_path, script)
    assert (done.returncode, done.stderr) == (0, "")
    assert "nothing was checked, there is no GPU" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_without_torch_it_fails_only_beside_a_gpu(project_root, script, tmp_path):
    done = run_script(project_root, tmp_path, script, with_torch=False)
    assert "this Python has no torch" in done.stdout
    assert done.returncode == (2 if os.path.exists(gpu_check.GPU_FILE) else 0)


def test_folders_cannot_be_imported_bare(project_root, tmp_path):
    code = (
        f"import sys; sys.path[:0] = {[str(project_root), str(project_root / 'perf')]}\n"
        "import gpu_check; gpu_check.import_from_checkout()\n"
        "import importlib.util, kvdefrag, kvdefrag.perf.baselines, kvdefrag.kernels.copy\n"
        "print(*(importlib.util.find_spec(n) for n in ('kernels', 'allocator', 'replay')))\n"
        "print(kvdefrag.__file__, kvdefrag.kernels.copy.__file__, sep='\\n')"
    )
    done = run_script(project_root, tmp_path, "-c", code)
    assert done.stdout.splitlines() == [
        "None None None",
        str(project_root / "allocator" / "_facade" / "__init__.py"),
        str(project_root / "kernels" / "copy.py"),
    ], done.stderr


def test_the_json_has_everything(whole_run):
    _, found, _ = whole_run
    assert found["format"] == 1
    assert set(found["device"]) >= {"name"}
    assert set(found["software"]) >= {"driver", "torch", "triton", "python", "commit"}
    assert found["passed"] is True
    assert found["errors"] == found["left_out"] == []
    assert {skipped["name"] for skipped in found["skipped"]} == {
        "sync debug mode",
        "CUDA graph",
        "captured translate_tokens",
        "compute-sanitizer",
    }
    assert {figure["group"] for figure in found["figures"]} == {
        "prewarm",
        busy.GROUP,
        *SECTIONS[SECTIONS.index("copy bandwidth") :],
    }
    for figure in found["figures"]:
        assert figure["verified"] is True
        assert figure["low"] <= figure["value"] <= figure["high"]
        assert figure["unit"] in ("GB/s", "us", "s", "x", SHARE)
    assert {target["name"] for target in found["targets"]} == {
        "copy of 512-byte pages",
        "copy of 16384-byte pages",
    }


def test_the_table_is_short_and_names_no_folder(whole_run):
    text, _, out = whole_run
    assert text.count("\n") < 80
    assert f"written to {out.name}" in text
    assert str(out.parent) not in text + out.read_text()
    for head in (*SECTIONS[SECTIONS.index("copy bandwidth") :], busy.GROUP):
        assert f"\n{head}" in text
    assert "checks passed" in text


def test_without_time_everything_is_left_out(project_root, tmp_path, capsys):
    out = tmp_path / "none.json"
    assert gpu_check_run.run("cpu", 0, str(out), str(project_root)) == 0
    found = json.loads(out.read_text())
    assert found["left_out"] == list(SECTIONS)
    assert (found["checks"], found["figures"]) == ([], [])
    assert "left out, no time: lockstep" in capsys.readouterr().out


def test_every_section_has_an_estimate_and_all_fit_ten_minutes(whole_run):
    report = Report({}, 100)
    device = torch.device("cuda")
    sections = gpu_check_run._checks(device, ON_A_GPU, report)
    sections += gpu_check_run._timings(device, ON_A_GPU, report)
    assert {name for name, _ in sections} == set(gpu_check_run.ESTIMATED_S)
    assert sum(gpu_check_run.ESTIMATED_S.values()) <= 600
    assert set(whole_run[1]["section_seconds"]) == set(SECTIONS)


def test_sizes_on_a_gpu_are_those_that_were_asked_for():
    assert ON_A_GPU.page_bytes == ALL_PAGE_BYTES
    assert ON_A_GPU.offsets == (0, 1, 8, 16)
    assert ON_A_GPU.timed_page_bytes[0] == 512
    assert ON_A_GPU.timed_page_bytes[-1] == 4 << 20
    assert list(ON_A_GPU.flush_rounds) == [16, 256, 4096, 65_536]
    assert ON_A_GPU.moved_bytes == 256 << 20


class TestReport:
    def test_a_wrong_result_fails_and_an_error_does_not(self):
        report = Report({}, 100)
        with report.measurement("slow"):
            raise RuntimeError("out of memory in /" + "some/where/file.cu")
        assert report.passed
        assert report.errors[0]["error"].startswith("RuntimeError: out of memory in file.cu [")
        with report.measurement("wrong"):
            raise Wrong("bytes differ")
        assert not report.passed

    def test_a_failed_check_stops_nothing(self):
        report = Report({}, 100)
        with report.check("one"):
            raise ValueError("no")
        with report.check("two"):
            pass
        assert [check["passed"] for check in report.checks] == [False, True]

    def test_an_unverified_figure_has_no_value(self):
        report = Report({}, 100)
        report.unverified("g", {"moves": 1}, "ours", "us", "wrong bytes")
        assert not report.passed
        assert report.figures[0]["value"] is None
        assert report.figures[0]["verified"] is False
        assert report.value("g", {"moves": 1}, "ours") is None

    def test_medians(self):
        report = Report({}, 100)
        assert report.figure("g", {"a": 1}, "ours", "us", [5, 1, 100]) == 5
        assert report.value("g", {"a": 1}, "ours") == 5
        assert report.value("g", {"a": 2}, "ours") is None

    def test_the_budget(self):
        report = Report({}, 50)
        assert report.time_for("short", 10)
        assert not report.time_for("long", 60)
        assert report.left_out == ["long"]

    @pytest.mark.parametrize(
        ("text", "cut"),
        [
            ("/" + "home/me/x/a.py:3", "a.py:3"),
            ("'/" + "tmp/x-1.2/k.ptx'", "'k.ptx'"),
            ("1 / 2 and a/b", "1 / 2 and a/b"),
            ("2 GB/s", "2 GB/s"),
        ],
    )
    def test_folders_are_cut_off(self, text, cut):
        assert without_folders(text) == cut

    def test_describe_without_a_message(self):
        assert describe(ValueError()) == "ValueError: no message"

    @pytest.mark.parametrize(("share", "passed"), [(97.0, True), (96.9, False)])
    def test_targets(self, share, passed):
        report = Report({}, 100)
        for page_bytes in (512, 656, 10496, 16384, 1 << 20):
            report.figure(GROUP, {"page_bytes": page_bytes}, OURS, SHARE, [share])
        set_targets(report)
        verdicts = {t["name"]: t["passed"] for t in report.targets}
        assert verdicts == {
            "copy of 512-byte pages": True,
            "copy of 16384-byte pages": passed,
            "copy of 1048576-byte pages": passed,
        }

    def test_the_name_of_the_file(self):
        facts = {"device": {"name": "NVIDIA H200 (SXM)"}, "date": "2026-01-02"}
        path = default_path(facts, "root")
        assert path == Path("root", "perf", "results", "nvidia-h200-sxm-2026-01-02.json")

    def test_a_table_of_failures(self):
        facts = {
            "device": {"name": "G"},
            "software": {"driver": None, "torch": "2", "triton": "3", "commit": None},
        }
        report = Report(facts, 0)
        report.unverified(GROUP, {"page_bytes": 512}, OURS, "GB/s", "wrong bytes")
        report.skip("this", "no tool")
        report.time_for("that", 5)
        lines = table(report.as_dict()).splitlines()
        assert "skipped: this: no tool" in lines
        assert "left out, no time: that" in lines
        assert any(line.startswith("FAILED: copy bandwidth") for line in lines)
        assert any("wrong" in line and "512" in line for line in lines)

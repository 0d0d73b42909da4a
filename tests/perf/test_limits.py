import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import triton
from click.testing import CliRunner

from kvdefrag.perf import limits
from kvdefrag.perf.__main__ import main
from kvdefrag.perf.ahead_of_time import CannotCompile, KernelCode, compile_for, read_code
from kvdefrag.perf.limits import (
    ARCHITECTURES,
    GPUS,
    KERNELS,
    Gpu,
    bytes_in_flight,
    limits_of,
    programs_per_sm,
)

KIB = 1 << 10
GPU = {gpu.name: gpu for gpu in GPUS}
KERNEL_NAMES = ["chunked", "flat", "layered chunked", "layered flat"]


def run_apart(*options):
    """The command in a process of its own, where kernels are compiled."""
    return subprocess.run(
        [sys.executable, "-m", "kvdefrag.perf", "limits", *options],
        env={**os.environ, "TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    ("registers", "warps", "programs"),
    [
        (16, 4, 16),  # 64 warps, however few registers
        (32, 4, 16),  # 65536 / (32 * 32) = 64 warps
        (33, 4, 12),  # 40 registers a thread: 51 warps, 48 in fours
        (40, 4, 12),
        (41, 4, 10),  # 48 registers a thread: 42 warps, 40 in fours
        (48, 4, 10),
        (49, 4, 9),  # 56 registers a thread: 36 warps
        (56, 8, 4),
        (64, 4, 8),
        (65, 4, 7),  # 72 registers a thread: 28 warps
        (168, 4, 3),  # 168 registers a thread: 12 warps
        (255, 16, 0),  # 8 warps
        (16, 1, 32),  # 64 warps, but only 32 programs
        (40, 3, 16),
    ],
)
def test_programs_an_sm_holds(registers, warps, programs):
    assert programs_per_sm(KernelCode(registers, warps, 1)) == programs


@pytest.mark.parametrize(
    ("code", "kib"),
    [
        (KernelCode(40, 4, 8), 12 * 16),  # 12 programs with 128 threads * 8 loads * 16 bytes
        (KernelCode(32, 4, 4), 16 * 8),
        (KernelCode(48, 4, 4), 10 * 8),
        (KernelCode(48, 2, 8), 20 * 8),
        (KernelCode(40, 4, 0), 0),
    ],
)
def test_bytes_an_sm_has_in_flight(code, kib):
    assert bytes_in_flight(code) == kib * KIB


@pytest.mark.parametrize(
    ("name", "needed", "floor_us"),
    [
        # peak / 2 * 2.2 us / SMs; 2 * 2**28 bytes / sustained + 2.5 us
        ("A100-80", 1.02e12 * 2.2e-6 / 108, 2**29 / 1.75e6 + 2.5),
        ("H100", 27_916.67, 186.99),
        ("H200", 40_000, 127.35),
        ("B200", 57_006.76, 93.50),
    ],
)
def test_need_and_floor_of_each_gpu(name, needed, floor_us):
    assert GPU[name].needed_bytes == pytest.approx(needed, rel=1e-4)
    assert GPU[name].floor_us(4096 * 64 * KIB) == pytest.approx(floor_us, rel=1e-4)


def test_nothing_moved_costs_the_launch():
    assert GPU["H200"].floor_us(0) == 2.5


def test_share_of_the_need_by_hand():
    # 100 SMs at 2 TB/s read 1 TB/s, which is 2.2 MB in 2.2 us, or 22,000 bytes an SM.
    gpu = Gpu("round", 90, 100, 2.0, 1.0, "a source", 16 * KIB)
    codes = {(90, name): KernelCode(40, 4, 8) for name in KERNELS}
    codes[90, "flat"] = KernelCode(41, 4, 4)
    figures = limits_of(gpu, codes, 500_000)
    assert figures["arch"] == "sm_90"
    assert figures["needed_bytes_per_sm"] == pytest.approx(22_000)
    assert figures["floor_us"] == pytest.approx(1 + 2.5)
    assert figures["kernels"]["chunked"] == {
        "registers": 40,
        "warps": 4,
        "loads": 8,
        "programs_per_sm": 12,
        "bytes_in_flight_per_sm": 196_608,
        "share_of_need": pytest.approx(8.9367, rel=1e-4),
    }
    assert figures["kernels"]["flat"]["bytes_in_flight_per_sm"] == 81_920
    assert figures["kernels"]["flat"]["share_of_need"] == pytest.approx(3.7236, rel=1e-4)


def test_depth_is_what_comes_before_the_first_wide_store():
    usage = "Function _copy:\n  REG:46 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:420"
    ptx = """
        ld.global.b64 { %rd9 }, [ %rd8 + 0 ];
        @%p3 ld.global.v2.b64 { %rd1, %rd2 }, [ %rd7 + 0 ];
        @%p4 ld.global.L1::evict_first.v2.b64 { %rd3, %rd4 }, [ %rd7 + 0 ];
        st.global.b64 [ %rd8 + 0 ], { %rd9 };
        @%p3 st.global.v2.b64 [ %rd5 + 0 ], { %rd1, %rd2 };
        @%p3 ld.global.v2.b64 { %rd1, %rd2 }, [ %rd6 + 0 ];
        @%p3 st.global.v2.b64 [ %rd6 + 0 ], { %rd1, %rd2 };
    """
    assert read_code(usage, ptx, 4) == KernelCode(46, 4, 2)
    assert read_code(usage, ptx.replace("v2.b64", "b64"), 4) == KernelCode(46, 4, 0)
    with pytest.raises(CannotCompile, match="no registers"):
        read_code("", ptx, 4)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """The figures and the output of one real run."""
    path = tmp_path_factory.mktemp("limits") / "limits.json"
    done = run_apart("--pages=1000", "--page-bytes=4096", f"--json={path}")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(path.read_text()), done.stdout


def test_compiled_kernels_keep_every_gpu_busy(compiled):
    report, _ = compiled
    assert report["computed_not_measured"] is True
    assert [gpu["name"] for gpu in report["gpus"]] == ["A100-80", "H100", "H200", "B200"]
    for gpu in report["gpus"]:
        assert list(gpu["kernels"]) == KERNEL_NAMES
        for name, kernel in gpu["kernels"].items():
            assert kernel["loads"] == (4 if name.endswith("flat") else 8)
            assert kernel["warps"] == 4
            assert 16 <= kernel["registers"] <= 64
            assert kernel["share_of_need"] > 1
    assert len(ARCHITECTURES) == 3


def test_floor_is_that_of_the_asked_batch(compiled):
    report, _ = compiled
    floors = [gpu["floor_us"] for gpu in report["gpus"]]
    assert floors == pytest.approx(
        [2 * 4_096_000 / rate + 2.5 for rate in (1.75e6, 2.91e6, 4.3e6, 5.9e6)]
    )


def test_output_says_what_it_is(compiled):
    report, output = compiled
    assert output.startswith("Computed, not measured")
    assert "1,000 pages of 4,096 bytes" in output
    for part in ("vLLM #49436", "vLLM #48110", "assumed", "layered chunked", "sm_100", "B200"):
        assert part in output
    assert "…" not in output
    for gpu in report["gpus"]:
        assert f"{gpu['floor_us']:,.1f}" in output
        for kernel in gpu["kernels"].values():
            assert f"{kernel['share_of_need']:.0%}" in output


def test_interpreter_cannot_compile():
    result = CliRunner().invoke(main, ["limits"])
    assert result.exit_code == 2
    assert "cannot be compiled here" in result.output
    assert "TRITON_INTERPRET" in result.output


def test_missing_tool_is_named(monkeypatch):
    monkeypatch.setattr(triton.knobs.NvidiaTool, "from_path", staticmethod(lambda path: None))
    with pytest.raises(CannotCompile, match="cuobjdump"):
        compile_for(90, SimpleNamespace(params=[]), {})


def test_code_that_does_not_compile_exits_with_2(monkeypatch):
    def fail(*arguments):
        raise CannotCompile("no ptxas")

    monkeypatch.setattr(limits, "compile_for", fail)
    result = CliRunner().invoke(main, ["limits"])
    assert result.exit_code == 2
    assert "cannot be compiled here: no ptxas" in result.output


@pytest.mark.parametrize(
    ("option", "part"),
    [
        ("--pages=0", "--pages"),
        ("--page-bytes=0", "--page-bytes"),
        ("--json=no/such/folder/limits.json", "no/such/folder does not exist"),
        ("extra", "extra"),
    ],
)
def test_bad_options_are_named_and_exit_with_2(option, part):
    result = CliRunner().invoke(main, ["limits", option])
    assert result.exit_code == 2
    assert part in result.output

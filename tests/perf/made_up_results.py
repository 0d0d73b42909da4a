"""Result files made up for tests: right in shape; their numbers mean nothing."""

import json
from itertools import product

CONTENDERS = ("kvdefrag", "scalar", "batched", "page_by_page")
RATIOS = {"kvdefrag": 2.5, "batched": 1.5, "scalar": 2.6}
HOLES = (1, 16, 256, 4096)
PAGE_BYTES = (65536, 1048576)
HOSTILE = "</script><img src=x onerror=alert(1)>&\"'`{{7*7}}%{x}"


def bench_row(name, median_us, extra=None, file="bench_flush.py", params=None):
    return {
        "name": name,
        "fullname": f"perf/{file}::{name}",
        "params": params,
        "extra_info": extra or {},
        "stats": {
            "median": median_us / 1e6,
            "q1": 0.9 * median_us / 1e6,
            "q3": 1.2 * median_us / 1e6,
            "rounds": 31,
        },
    }


def flush_row(contender, holes, page_bytes, number, **more):
    extra = {
        "layer": "flush",
        "contender": contender,
        "holes": holes,
        "moves": holes // 2,
        "page_bytes": page_bytes,
        "fragmentation": min(0.25, holes / 64),
        "backend": "host" if contender == "kvdefrag" else "torch",
        "baseline": "scalar" if contender == "kvdefrag" else contender,
        "device": "cpu",
        "d2h": 1,
        "torch": "9.9.9",
        **({"paired_ratio_p50": RATIOS[contender]} if contender in RATIOS else {}),
        **more,
    }
    median_us = 10 + 0.125 * holes * (number + 1) + page_bytes / 1e5
    params = {"contender": contender, "holes": holes, "page_bytes": page_bytes}
    name = f"test_flush[{contender}-{holes}-{page_bytes}]"
    return bench_row(name, median_us, extra, params=params)


def record(commit="a" * 40, day=1, brand="Made-up CPU", rows=None, slower=1.0):
    if rows is None:
        rows = [
            flush_row(contender, holes, page_bytes, number)
            for (number, contender), holes, page_bytes in product(
                enumerate(CONTENDERS), HOLES, PAGE_BYTES
            )
        ]
        for holes in HOLES:
            extra = {"layer": "plan", "holes": holes, "backend": "host"}
            rows.append(bench_row(f"test_plan[{holes}]", 5 + holes / 100, extra, "bench_plan.py"))
    for row in rows:
        if isinstance(row.get("stats"), dict):
            row["stats"]["median"] *= slower
    return {
        "machine_info": {"node": "secret-host", "cpu": {"brand_raw": brand, "count": 2}},
        "commit_info": {"id": commit, "dirty": False},
        "benchmarks": rows,
        "datetime": f"2001-01-{day:02}T12:00:00+00:00",
    }


INTERPRETED_MARKS = ({"backend": "interpret"}, {"backend": "triton", "interpreted": True})


def interpreted_row(mark=INTERPRETED_MARKS[0]):
    extra = {"layer": "flush", "holes": 7777, **mark}
    return bench_row("test_flush[interpreted]", 123456.0, extra)


def replay():
    pools = {"full": 900, "state": 80}
    return {
        "settings": {"trace": "made-up trace", "geometry": "made-up geometry"},
        "passed": True,
        "tokens": {"hit_rate": 0.25},
        "flushes": 3,
        "host_time": {},
        "byte_check": {"pages_checked": 1234, "wrong_pages": 0},
        "occupancy": [
            {
                "request": request,
                "pools": {
                    pool: {
                        "live_pages": (live := pages * min(request, 60) // 100),
                        "hole_pages": (holes := (request * 7) % (pages // 8)),
                        "span_pages": live + holes,
                    }
                    for pool, pages in pools.items()
                },
            }
            for request in range(0, 201, 5)
        ],
        "heat": {
            "before": [
                {"full": (i * 37 % 100) / 100 if i < 160 else 0, "state": 1.0 if i > 230 else 0}
                for i in range(256)
            ],
            "after": [
                {"full": 1.0 if i < 80 else 0, "state": 1.0 if i > 240 else 0} for i in range(256)
            ],
        },
    }


def run(contender, hit_rate, split=None, **more):
    return {
        "contender": contender,
        "split": split,
        "pool_gib": 100.0,
        "hit_rate": hit_rate,
        "evicted_pages": {"full": 10, "state": 1},
        "waited_requests": 2,
        "host_ms": {"alloc": 10.5, "free": 2.25, "flush": 4.125, "total": 16.875},
        "moves": 1000,
        "bytes_moved": 64000,
        "device_to_host_copies": 12,
        "modelled_sync_ms": 0.5,
        "passed": True,
        **more,
    }


def comparison():
    runs = [
        run("kvdefrag", 0.375),
        run("scalar", 0.375),
        run("batched", 0.375),
        run("eager", 0.375),
        run("static", 0.25, "1/4"),
        run("static", 0.3125, "1/2"),
    ]
    small = [run("kvdefrag", 0.125, pool_gib=20.0), run("static", 0.1, "1/2", pool_gib=20.0)]
    return {
        "comparison": runs + small,
        "settings": {"trace": "made-up trace", "pool_gib": [100.0, 20.0]},
    }


def gpu_check():
    figures = []
    for i, page_bytes in enumerate((512, 4096, 65536, 1048576)):
        case = {"page_bytes": page_bytes, "moves": 64, "bytes": 64 * page_bytes}
        for j, what in enumerate(("device copy", "kvdefrag", "straightforward kernel")):
            value = 1000.5 * (i + 1) - 300 * j
            figures.append(figure("copy bandwidth", case, what, value, "GB/s"))
        figures.append(figure("copy bandwidth", case, "kvdefrag", 90.5 + i, "% of device copy"))
    for moves in (16, 256, 4096):
        case = {"moves": moves, "page_bytes": 65536}
        for j, what in enumerate(("kvdefrag", "page by page", "batched look-up")):
            figures.append(figure("urgent flush", case, what, 50.5 + moves * (j + 0.25), "us"))
    return {
        "format": 1,
        "date": "2001-01-03",
        "device": {"name": "NVIDIA H200", "capability": "9.0"},
        "software": {"commit": "b" * 40},
        "passed": True,
        "figures": figures,
    }


def figure(group, case, what, value, unit):
    bounds = {"low": 0.9 * value, "high": 1.1 * value, "rounds": 9}
    return {"group": group, "case": case, "what": what, "value": value, "unit": unit, **bounds}


def limits():
    gpu = {"name": "H200", "sustained_tb_s": 4.5, "peak_tb_s": 5.0}
    return {"computed_not_measured": True, "gpus": [gpu]}


def write_all(folder):
    """One file of each kind, and a second record for the history; the paths."""
    contents = {
        "older.json": record("c" * 40, day=1),
        "newer.json": record("d" * 40, day=2),
        "elsewhere.json": record("d" * 40, day=3, brand="Another made-up CPU"),
        "replay.json": replay(),
        "comparison.json": comparison(),
        "gpu.json": gpu_check(),
        "limits.json": limits(),
    }
    paths = []
    for name, content in contents.items():
        path = folder / name
        path.write_text(json.dumps(content))
        paths.append(path)
    return paths

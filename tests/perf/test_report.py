import json

import pytest
from click.testing import CliRunner

from kvdefrag.perf import report_command, report_page
from kvdefrag.perf.__main__ import main

from . import made_up_results as made_up
from .report_reader import report

ALL = {
    "older.json": made_up.record("c" * 40, day=1, slower=1.5),
    "newer.json": made_up.record("d" * 40, day=2),
    "replay.json": made_up.replay(),
    "comparison.json": made_up.comparison(),
    "gpu.json": made_up.gpu_check(),
    "limits.json": made_up.limits(),
}
CHARTS = [
    "flush",
    "gpu-flush",
    "bandwidth",
    "hit-rate",
    "host-time",
    "occupancy",
    "heat",
    "plan",
    "alloc-free",
    "history",
]
WITHOUT_INPUT = ["alloc-free"]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    result, page = report(tmp_path_factory.mktemp("report"), ALL)
    assert result.exit_code == 0, result.output
    return page


def cells(page, key, *headings):
    """The columns of a table with these headings, row by row."""
    head, *rows = page.tables[key]
    places = [head.index(heading) for heading in headings]
    return [tuple(row[place] for place in places) for row in rows]


def points(page, key, names=None):
    """x and y of the traces that are shown at first, by name."""
    return {
        trace["name"]: list(zip(trace["x"], trace["y"], strict=True))
        for trace in page.figures[key]["data"]
        if trace["visible"] and (names is None or trace["name"] in names)
    }


def test_every_chart_has_its_section_and_its_figure(page):
    assert page.sections == CHARTS
    assert set(page.figures) == set(CHARTS) - set(WITHOUT_INPUT)


def test_the_page_needs_nothing_else(page):
    assert {link.split(":")[0].split("#")[0] for link in page.links} == {"", "data"}
    assert page.tags.count("script") == 3
    assert "default-src 'none'" in page.text


def test_flush_times_are_those_of_the_newest_record(page):
    rows = ALL["newer.json"]["benchmarks"]
    wanted = {
        (row["extra_info"]["contender"], row["extra_info"]["holes"], row["stats"]["median"] * 1e6)
        for row in rows
        if row["extra_info"]["layer"] == "flush"
    }
    found = cells(page, "flush", "allocator", "holes", "median us")
    assert len(found) == len(wanted)
    assert set(found) == wanted
    assert "newer.json: commit dddddddddd, 2001-01-02, Made-up CPU, 2 cores" in page.words
    for name, drawn in points(page, "flush").items():
        assert [x for x, _ in drawn] == list(made_up.HOLES)
        assert {(name, *point) for point in drawn} <= wanted
    layout = page.figures["flush"]["layout"]
    assert layout["xaxis"]["type"] == layout["yaxis"]["type"] == "log"


def test_each_page_size_is_a_case_of_its_own(page):
    assert "64 KiB a page" in page.words
    assert "1 MiB a page" in page.words
    cases = [trace["meta"]["case"] for trace in page.figures["flush"]["data"]]
    assert cases == [0] * len(made_up.CONTENDERS) + [1] * len(made_up.CONTENDERS)


def test_bandwidth_has_its_limit_drawn_in(page):
    drawn = points(page, "bandwidth")
    assert drawn["sustained limit"] == [(512, 4500.0), (1048576, 4500.0)]
    assert drawn["peak of the memory"] == [(512, 5000.0), (1048576, 5000.0)]
    wanted = {
        (figure["what"], figure["case"]["page_bytes"], figure["value"])
        for figure in ALL["gpu.json"]["figures"]
        if (figure["group"], figure["unit"]) == ("copy bandwidth", "GB/s")
    }
    assert wanted <= set(cells(page, "bandwidth", "copy", "page bytes", "GB/s"))
    shares = cells(page, "bandwidth", "GB/s", "% of limit")
    assert all(share == pytest.approx(100 * gbps / 4500) for gbps, share in shares if share)


def test_limits_of_another_gpu_are_not_drawn(tmp_path):
    check = made_up.gpu_check()
    check["device"]["name"] = "NVIDIA H2001"
    _, page = report(tmp_path, {"gpu.json": check, "limits.json": made_up.limits()})
    assert "sustained limit" not in points(page, "bandwidth")


def test_occupancy_holds_every_point(page):
    wanted = [
        (point["request"], pool, pages["live_pages"], pages["hole_pages"], pages["span_pages"])
        for point in ALL["replay.json"]["occupancy"]
        for pool, pages in point["pools"].items()
    ]
    found = cells(page, "occupancy", "request", "pool", "live pages", "holes", "span")
    assert found == wanted
    drawn = points(page, "occupancy")
    assert drawn["state: holes"] == [
        (at, holes) for at, pool, _, holes, _ in wanted if pool == "state"
    ]


def test_heat_holds_every_piece(page):
    heat = ALL["replay.json"]["heat"]
    found = cells(page, "heat", "piece", "pool", "live before", "live after")
    assert found == [
        (number, pool, before[pool], after[pool])
        for number, (before, after) in enumerate(zip(heat["before"], heat["after"], strict=True))
        for pool in ("full", "state")
    ]


def test_comparison_shows_hits_and_time(page):
    runs = ALL["comparison.json"]["comparison"]
    rates = [100 * run["hit_rate"] for run in runs]
    assert [rate for (rate,) in cells(page, "hit-rate", "hit rate %")] == rates
    names = ["kvdefrag", "scalar", "batched", "eager", "static 1/4", "static 1/2"]
    names += ["kvdefrag", "static 1/2"]
    assert [name for (name,) in cells(page, "host-time", "allocator")] == names
    assert points(page, "host-time")["flush"] == [(4.125, name) for name in names[:6]]
    assert "100 GiB, comparison.json, made-up trace" in page.words
    assert "20 GiB, comparison.json, made-up trace" in page.words
    assert "syncs (model)" in points(page, "host-time")
    assert "a model, not a measurement" in page.words


def test_history_joins_no_machines(tmp_path):
    contents = {f"{day}.json": made_up.record(str(day) * 40, day=day) for day in (2, 1)}
    contents["3.json"] = made_up.record("3" * 40, day=3, brand="Another CPU")
    _, page = report(tmp_path, contents)
    drawn = points(page, "history")
    assert [x for x, _ in drawn["Made-up CPU, 2 cores"]] == [
        "2001-01-01 12:00<br>1111111111",
        "2001-01-02 12:00<br>2222222222",
    ]
    assert len(drawn["Another CPU, 2 cores"]) == 1
    assert {row[1] for row in cells(page, "history", "date", "commit")} == {
        str(day) * 10 for day in (1, 2, 3)
    }


def test_headline(page):
    assert (
        "1.5x as fast as batched, 2.5x as scalar, at 4,096 holes; at 1, 1.5x as batched"
        in page.words
    )
    assert "92.5 % of a device copy, 64 KiB a page, NVIDIA H200" in page.words
    assert "+2.5 to +6.2 points over the best static split, 2 pool sizes" in page.words
    assert "0 of 1,234 compared in one replay" in page.words


def test_one_pool_size_is_told_with_its_split(tmp_path):
    comparison = made_up.comparison()
    comparison["comparison"] = comparison["comparison"][:6]
    _, page = report(tmp_path, {"comparison.json": comparison})
    assert "+6.2 points: 37.5 % against 31.2 % of the best split (static 1/2)" in page.words


def test_without_input_every_chart_says_so(tmp_path):
    _, page = report(tmp_path, {"limits.json": made_up.limits()})
    assert page.sections == CHARTS
    assert not page.figures
    assert not page.tables
    assert page.text.count('class="missing"') == len(CHARTS) + 1  # and one for noscript
    assert page.words.count("no data") == 5


@pytest.mark.parametrize("mark", made_up.INTERPRETED_MARKS)
def test_interpreter_rows_are_never_drawn(tmp_path, mark):
    rows = [*made_up.record()["benchmarks"], made_up.interpreted_row(mark)]
    check = made_up.gpu_check()
    check["device"] = {"name": "CPU, Triton's interpreter"}
    contents = {"record.json": made_up.record(rows=rows), "check.json": check}
    _, page = report(tmp_path, contents)
    own = page.text.replace(report_page.get_plotlyjs(), "")
    assert "7777" not in own
    assert "123456" not in own
    assert "record.json: 1 rows of Triton's interpreter are not shown" in page.words
    assert "check.json: run in Triton's interpreter" in page.words
    assert "gpu-flush" not in page.figures
    assert "bandwidth" not in page.figures


def test_a_run_with_wrong_bytes_is_not_drawn(tmp_path):
    comparison = made_up.comparison()
    comparison["comparison"].append(made_up.run("vmm", 0.99, passed=False))
    _, page = report(tmp_path, {"comparison.json": comparison})
    assert not [name for name in points(page, "hit-rate") if "vmm" in name]
    assert ("vmm", "", "no") in cells(page, "hit-rate", "allocator", "hit rate %", "bytes right")
    assert "failed: comparison.json: vmm" in page.words


def hostile_contents():
    """Every name that a file can carry is markup."""
    name = made_up.HOSTILE
    rows = made_up.record()["benchmarks"]
    rows.append(made_up.flush_row(name, 16, 65536, 5, backend=name, device=name))
    replay, check = made_up.replay(), made_up.gpu_check()
    replay["settings"] = {"trace": name, "geometry": name}
    for point in replay["occupancy"]:
        point["pools"][name] = point["pools"].pop("state")
    for cell in (*replay["heat"]["before"], *replay["heat"]["after"]):
        cell[name] = cell.pop("state")
    check["device"]["name"] = check["date"] = name
    for figure in check["figures"]:
        figure["what"] = name if figure["what"] != "kvdefrag" else "kvdefrag"
    comparison = made_up.comparison()
    comparison["comparison"].append(made_up.run(name, 0.5, name))
    comparison["settings"]["trace"] = name
    return {
        "record.json": {**made_up.record(name, brand=name, rows=rows), "datetime": name},
        "replay.json": replay,
        "comparison.json": comparison,
        "gpu.json": check,
    }


def test_hostile_names_stay_text(tmp_path):
    result, page = report(tmp_path, hostile_contents(), f"--title={made_up.HOSTILE}")
    assert result.exit_code == 0, result.output
    assert "img" not in page.tags
    assert page.tags.count("script") == 3
    assert page.words.count(made_up.HOSTILE) > 20
    text = json.dumps(page.figures)
    assert "<img" not in text
    assert "&lt;img" in text


@pytest.mark.parametrize("missing", ["plotly", "jinja2"])
def test_a_missing_extra_is_named(tmp_path, monkeypatch, missing):
    monkeypatch.setattr(report_command, "find_spec", lambda name: None if name == missing else 1)
    result, page = report(tmp_path, {"limits.json": made_up.limits()})
    assert result.exit_code == 2
    assert f"{missing} not found: pip install 'kvdefrag[charts]'" in result.output
    assert page is None


def test_a_folder_stands_for_its_files(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "limits.json").write_text(json.dumps(made_up.limits()))
    (tmp_path / "in" / "exported.json").write_text("[]")
    out = tmp_path / "page.html"
    result = CliRunner().invoke(main, ["report", str(tmp_path / "in"), f"--out={out}"])
    assert result.exit_code == 0, result.output
    assert "passed over exported.json" in result.output
    assert "1 files" in result.output


@pytest.mark.parametrize(
    ("content", "part"),
    [([], "neither a benchmark record nor"), ({"comparison": 3}, "not a comparison as expected")],
)
def test_files_that_cannot_be_read_are_named(tmp_path, content, part):
    result, page = report(tmp_path, {"strange.json": content})
    assert result.exit_code == 2
    assert "strange.json" in result.output
    assert part in " ".join(result.output.split())
    assert page is None


def test_a_folder_that_is_not_there_is_named(tmp_path):
    result, _ = report(tmp_path, {"limits.json": made_up.limits()}, "--out=no/such/page.html")
    assert result.exit_code == 2
    assert "no/such does not exist" in result.output

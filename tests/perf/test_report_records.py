"""Records that are unlike the usual one."""

from . import made_up_results as made_up
from .report_reader import report


def drawn(page, key):
    """x and y of every trace, by name."""
    return {
        trace["name"]: list(zip(trace["x"], trace["y"], strict=True))
        for trace in page.figures[key]["data"]
    }


def test_bandwidth_has_a_line_for_each_number_of_moves(tmp_path):
    rows = [
        made_up.bench_row(
            f"test_copy[{moves}-{page_bytes}]",
            10.0,
            {"layer": "kernels", "gbps": moves + page_bytes / 1e6, "op": "copy"}
            | {"moves": moves, "page_bytes": page_bytes},
        )
        for moves in (16, 256)
        for page_bytes in (65536, 4096)
    ]
    _, page = report(tmp_path, {"record.json": made_up.record(rows=rows)})
    assert drawn(page, "bandwidth") == {
        f"kvdefrag, copy of {moves} pages": [(4096, moves + 0.004096), (65536, moves + 0.065536)]
        for moves in (16, 256)
    }


def test_a_tree_without_commits_is_said_to_have_none(tmp_path):
    _, page = report(tmp_path, {"record.json": made_up.record("unversioned")})
    assert "record.json: no commit, 2001-01-01" in page.words


def test_figures_beside_the_parameters_do_not_cut_a_line(tmp_path):
    """The share of holes differs at few holes, where the pool has a least size."""
    rows = [made_up.flush_row("kvdefrag", holes, 65536, 0) for holes in made_up.HOLES]
    assert len({row["extra_info"]["fragmentation"] for row in rows}) > 1
    _, page = report(tmp_path, {"record.json": made_up.record(rows=rows)})
    assert [x for x, _ in drawn(page, "flush")["kvdefrag"]] == list(made_up.HOLES)


def test_a_replay_without_moves_has_no_strip(tmp_path):
    replay = made_up.replay()
    replay["heat"] = {"before": [], "after": []}
    _, page = report(tmp_path, {"replay.json": replay})
    assert "heat" not in page.figures
    assert "a flush that moved pages" in page.words


def test_replays_and_comparisons_of_several_files_are_cases(tmp_path):
    contents = {f"replay{i}.json": made_up.replay() for i in (1, 2)}
    contents |= {f"comparison{i}.json": made_up.comparison() for i in (1, 2)}
    _, page = report(tmp_path, contents)
    cases = {
        key: {trace["meta"]["case"] for trace in figure["data"]}
        for key, figure in page.figures.items()
    }
    assert cases == {
        "hit-rate": {0, 1, 2, 3},
        "host-time": {0, 1, 2, 3},
        "occupancy": {0, 1},
        "heat": {0, 1},
    }


def test_of_two_gpus_the_newer_is_shown_first(tmp_path):
    old, new = made_up.gpu_check(), made_up.gpu_check()
    old["date"] = "2000-12-31"
    old["device"]["name"] = "NVIDIA H200 NVL"
    contents = {"new.json": new, "old.json": old, "limits.json": made_up.limits()}
    _, page = report(tmp_path, contents)
    for key in ("bandwidth", "gpu-flush"):
        traces = page.figures[key]["data"]
        assert {trace["meta"]["case"] for trace in traces} == {0, 1}
        assert all(trace["visible"] == (trace["meta"]["case"] == 0) for trace in traces)
        assert page.text.index("NVIDIA H200, 2001") < page.text.index("NVIDIA H200 NVL, 2000")

from fractions import Fraction

import pytest

from kvdefrag.perf.geometries import DEFAULT_GEOMETRY, GEOMETRIES, Geometry, plan_pools

GIB = 1 << 30


def test_figures_of_the_presets():
    figures = {
        name: (
            geometry.page_size,
            geometry.page_bytes,
            geometry.state_bytes,
            geometry.window_page_bytes,
            geometry.window_tokens,
        )
        for name, geometry in GEOMETRIES.items()
    }
    assert figures == {
        "qwen3.5-9b": (16, 524_288, 51_511_296, 0, 0),
        "kimi-linear-48b": (64, 516_096, 43_417_600, 0, 0),
        "llama-3.1-8b": (16, 2_097_152, 0, 0, 0),
        "gpt-oss-20b": (16, 393_216, 0, 393_216, 128),
        "phi-4-mini-flash": (16, 81_920, 3_225_600, 655_360, 512),
    }


def test_the_default_pool():
    layout = plan_pools(GEOMETRIES[DEFAULT_GEOMETRY], 100 * GIB, Fraction(1, 1024))
    assert (layout.num_pages, layout.page_bytes, layout.block_pages) == (204_800, 512, 32)
    assert (layout.state_slots, layout.state_bytes) == (2084, 50_304)
    assert layout.total_bytes == 100 << 20


@pytest.mark.parametrize("scale", [Fraction(1), Fraction(1, 7), Fraction(1, 1000), Fraction(3, 2)])
@pytest.mark.parametrize("geometry", GEOMETRIES.values(), ids=GEOMETRIES)
def test_scaling_keeps_the_counts(geometry, scale):
    unscaled = plan_pools(geometry, 80 * GIB, Fraction(1))
    layout = plan_pools(geometry, 80 * GIB, scale)
    assert layout.num_pages == unscaled.num_pages == layout.total_bytes // layout.page_bytes
    for bytes_of_one, count, unscaled_bytes, unscaled_count in (
        (layout.state_bytes, layout.state_slots, geometry.state_bytes, unscaled.state_slots),
        (
            layout.window_page_bytes,
            layout.window_pages,
            geometry.window_page_bytes,
            unscaled.window_pages,
        ),
    ):
        if unscaled_bytes:
            assert layout.total_bytes // bytes_of_one == count
            assert bytes_of_one == pytest.approx(unscaled_bytes * scale, rel=2e-3)
            if some_bytes_give(unscaled_count, layout.total_bytes):
                assert count == unscaled_count
        else:
            assert bytes_of_one == count == 0
    assert layout.window_tokens == geometry.window_tokens


def some_bytes_give(count, total_bytes):
    return any(total_bytes // (total_bytes // count + off) == count for off in (-1, 0, 1))


@pytest.mark.parametrize(
    ("tokens", "first"), [(0, 0), (100, 0), (101, 0), (115, 0), (116, 1), (132, 2), (1000, 56)]
)
def test_the_first_page_that_a_window_reaches(tokens, first):
    layout = plan_pools(Geometry("w", 1024, 16, 0, 2048, 100), 1 << 20, Fraction(1))
    assert layout.window_first(tokens) == first
    assert layout.window_block_pages == 7


@pytest.mark.parametrize("window", [(1024, 0), (0, 128), (1024, 513), (1024, -16)])
def test_a_window_that_is_none_is_refused(window):
    with pytest.raises(ValueError, match="window"):
        Geometry("w", 1024, 16, 0, *window)


@pytest.mark.parametrize("state_bytes", [1500, 600])
def test_sizes_that_no_scale_suits_stay_positive(state_bytes):
    layout = plan_pools(Geometry("tiny", 1024, 16, state_bytes), 1 << 20, Fraction(1, 1024))
    assert (layout.page_bytes, layout.num_pages) == (1, 1024)
    assert layout.state_bytes >= 1
    assert layout.state_slots == layout.total_bytes // layout.state_bytes


@pytest.mark.parametrize(
    ("geometry", "part"),
    [
        (Geometry("small page", 511, 16), "page of 511 bytes"),
        (Geometry("small state", 1024, 16, 500), "state slot of 500 bytes"),
        (Geometry("large state", 1024, 16, 1 << 30), "holds no state slot"),
        (Geometry("small window", 1024, 16, 0, 500, 64), "window page of 500 bytes"),
        (Geometry("large window", 1024, 16, 0, 1 << 30, 64), "holds no window page"),
    ],
    ids=lambda value: value.name if isinstance(value, Geometry) else "",
)
def test_refused_sizes_are_named(geometry, part):
    with pytest.raises(ValueError, match=part):
        plan_pools(geometry, 1 << 20, Fraction(1, 1024))

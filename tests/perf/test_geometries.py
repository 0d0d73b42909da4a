from fractions import Fraction

import pytest

from kvdefrag.perf.geometries import DEFAULT_GEOMETRY, GEOMETRIES, Geometry, plan_pools

GIB = 1 << 30


def test_figures_of_the_presets():
    figures = {
        name: (geometry.page_size, geometry.page_bytes, geometry.state_bytes)
        for name, geometry in GEOMETRIES.items()
    }
    assert figures == {
        "qwen3.5-9b": (16, 524_288, 51_511_296),
        "kimi-linear-48b": (64, 516_096, 43_417_600),
        "llama-3.1-8b": (16, 2_097_152, 0),
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
    assert layout.state_slots == unscaled.state_slots
    if layout.state_bytes:
        assert layout.total_bytes // layout.state_bytes == layout.state_slots
        assert layout.state_bytes == pytest.approx(geometry.state_bytes * scale, rel=1e-3)


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
    ],
    ids=lambda value: value.name if isinstance(value, Geometry) else "",
)
def test_refused_sizes_are_named(geometry, part):
    with pytest.raises(ValueError, match=part):
        plan_pools(geometry, 1 << 20, Fraction(1, 1024))

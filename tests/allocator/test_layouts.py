"""Byte geometry from model figures: sizes, offsets, alignment, and what is refused."""

import numpy as np
import pytest
import torch

from kvdefrag import EnvelopeLayout, UsageError, attention_layout, mamba_layout, mla_layout
from kvdefrag.perf.geometries import GEOMETRIES

from .envelopes import bytes_of_part

BF16, FP8, FP16, FP32 = torch.bfloat16, torch.float8_e4m3fn, torch.float16, torch.float32


def used_bytes(layout: EnvelopeLayout, *names: str) -> list[int]:
    pairs = [(name, layer) for layer in layout.layers for name in names]
    return [byte for pair in pairs for byte in bytes_of_part(layout, *pair)]


def no_overlap(layout: EnvelopeLayout, *names: str) -> int:
    """The bytes of the envelope that ``names`` leave unused, after a check that none is twice."""
    used = used_bytes(layout, *names)
    assert len(used) == len(set(used))
    assert min(used) >= 0
    assert max(used) < layout.page_bytes
    assert max(part.end for part in layout.parts) == max(used) + 1
    return layout.page_bytes - len(used)


def test_sizes_are_those_of_the_replayed_models():
    """The presets of the replay describe the same models, and weigh the same."""
    kimi_conv, qwen_conv = 3 * 32 * 128, 2 * 16 * 128 + 32 * 128
    layouts = {
        "qwen3.5-9b": (
            attention_layout(range(3, 32, 4), 4, 256, 16, BF16),
            mamba_layout(24, (qwen_conv, 3), (32, 128, 128), BF16, FP32),
        ),
        "kimi-linear-48b": (
            mla_layout(7, 512, 64, 64, BF16),
            mamba_layout(20, (kimi_conv, 3), (32, 128, 128), BF16, FP32),
        ),
        "llama-3.1-8b": (attention_layout(32, 8, 128, 16, BF16), None),
    }
    weights = {
        name: (page.page_size, page.page_bytes, state.page_bytes if state else 0)
        for name, (page, state) in layouts.items()
    }
    assert weights == {
        name: (geometry.page_size, geometry.page_bytes, geometry.state_bytes)
        for name, geometry in GEOMETRIES.items()
        if name in weights
    }
    assert all(state is None or state.page_size == 1 for _, state in layouts.values())


def test_attention_offsets():
    layout = attention_layout([3, 7], 2, 4, 5, FP16, value_head_dim=6)
    assert [(part.name, part.layer, part.offset, part.shape) for part in layout.parts] == [
        ("k", 3, 0, (5, 2, 4)),
        ("v", 3, 80, (5, 2, 6)),
        ("k", 7, 200, (5, 2, 4)),
        ("v", 7, 280, (5, 2, 6)),
    ]
    assert layout.part("v", 7).strides == (24, 12, 2)
    assert (layout.page_bytes, layout.page_size, layout.alignment) == (400, 5, 1)
    assert no_overlap(layout, "k", "v") == 0


def test_scale_strip_and_odd_padding():  # the envelope of reported fault 42
    layout = attention_layout(3, 1, 64, 16, FP8, scale_dtype=FP32, padding_bytes=107)
    assert layout.page_bytes == 6635
    offsets = {(part.name, part.layer): part.offset for part in layout.parts}
    assert offsets == {
        **{("k", layer): 2048 * layer for layer in range(3)},
        **{("v", layer): 2048 * layer + 1024 for layer in range(3)},
        **{("k_scale", layer): 6144 + 128 * layer for layer in range(3)},
        **{("v_scale", layer): 6208 + 128 * layer for layer in range(3)},
    }
    assert layout.part("v_scale", 2).shape == (16, 1, 1)
    assert no_overlap(layout, "k", "v", "k_scale", "v_scale") == 107


def test_scales_of_groups():
    layout = attention_layout(1, 2, 40, 3, FP8, scale_dtype=FP16, scale_group=16, value_head_dim=7)
    assert layout.part("k_scale", 0).shape == (3, 2, 3)
    assert layout.part("v_scale", 0).shape == (3, 2, 1)
    assert layout.part("k_scale", 0).offset == 240 + 42
    assert no_overlap(layout, "k", "v", "k_scale", "v_scale") == 0


def test_latent_rows():
    layout = mla_layout(2, 6, 2, 4, BF16)
    assert {(part.name, part.layer, part.offset, part.shape) for part in layout.parts} == {
        ("kv", 0, 0, (4, 8)),
        ("latent", 0, 0, (4, 6)),
        ("rope", 0, 12, (4, 2)),
        ("kv", 1, 64, (4, 8)),
        ("latent", 1, 64, (4, 6)),
        ("rope", 1, 76, (4, 2)),
    }
    assert {part.strides for part in layout.parts} == {(16, 2)}
    assert used_bytes(layout, "kv") == list(range(128))
    assert no_overlap(layout, "latent", "rope") == 0


def test_latent_rows_of_mixed_types():
    """512 bytes of latent, 4 scales and 64 rope elements of 2 bytes: rows of 656 bytes."""
    options = {"rope_dtype": BF16, "scale_dtype": FP32, "scale_group": 128}
    layout = mla_layout(1, 512, 64, 64, FP8, **options)
    assert layout.names == ["latent", "scale", "rope"]
    assert [part.offset for part in layout.parts] == [0, 512, 528]
    assert [part.strides for part in layout.parts] == [(656, 1), (656, 4), (656, 2)]
    assert layout.page_bytes == 64 * 656
    assert no_overlap(layout, "latent", "scale", "rope") == 0


def test_rows_with_a_scale_are_no_single_tensor():
    layout = mla_layout(1, 4, 2, 2, FP16, scale_dtype=FP16)
    assert layout.names == ["latent", "scale", "rope"]


def test_latent_rows_keep_their_items_aligned():
    layout = mla_layout(2, 5, 3, 2, FP8, rope_dtype=BF16, scale_dtype=FP32, alignment=1)
    assert [part.offset for part in layout.parts] == [0, 8, 12, 40, 48, 52]
    assert layout.part("rope", 1).strides == (20, 2)
    assert layout.page_bytes == 80
    assert no_overlap(layout, "latent", "scale", "rope") == 2 * 2 * (3 + 2)


@pytest.mark.parametrize(
    ("alignment", "offsets", "page_bytes"),
    [
        (None, [0, 8, 20, 28], 40),
        (1, [0, 6, 18, 24], 36),
        (16, [0, 16, 32, 48], 64),
        (6, [0, 6, 18, 24], 36),
    ],
)
def test_state_offsets_and_alignment(alignment, offsets, page_bytes):
    layout = mamba_layout([1, 2], [3], (1, 3), BF16, FP32, alignment=alignment)
    assert [(part.name, part.layer) for part in layout.parts] == [
        ("conv", 1), ("state", 1), ("conv", 2), ("state", 2)
    ]  # fmt: skip
    assert [part.offset for part in layout.parts] == offsets
    assert layout.page_bytes == page_bytes
    assert layout.alignment == (alignment or 1)
    no_overlap(layout, "conv", "state")
    padded = mamba_layout([1, 2], [3], (1, 3), BF16, FP32, alignment=alignment, padding_bytes=7)
    assert (padded.page_bytes, padded.parts) == (page_bytes + 7, layout.parts)


@pytest.mark.parametrize("name", ["state", "k"])
def test_unknown_part(name):
    layout = mamba_layout([1, 2], [3], [4], BF16, FP32)
    with pytest.raises(UsageError, match=rf"no '{name}' of layer 0 in \['conv', 'state'\] of \[1"):
        layout.part(name, 0)


@pytest.mark.parametrize(
    ("figures", "message"),
    [
        ({"layers": 0}, "layers: expected 1 or more, got 0"),
        ({"layers": [1, 1]}, r"layers: expected a count or distinct numbers, got \[1, 1\]"),
        ({"layers": []}, r"layers: expected a count or distinct numbers, got \[\]"),
        ({"layers": [-1]}, "layers: expected 0 or more, got -1"),
        ({"layers": "ab"}, "layers: expected an integer, got 'ab'"),
        ({"kv_heads": 0}, "kv_heads: expected 1 or more, got 0"),
        ({"head_dim": 2.5}, "head_dim: expected an integer, got 2.5"),
        ({"page_size": 0}, "page_size: expected 1 or more, got 0"),
        ({"dtype": np.float16}, "dtype of 'k': expected a torch.dtype, got <class"),
        ({"value_head_dim": 0}, "value_head_dim: expected 1 or more, got 0"),
        ({"scale_dtype": "fp32"}, "dtype of 'k_scale': expected a torch.dtype, got 'fp32'"),
        ({"scale_dtype": FP32, "scale_group": 0}, "scale_group: expected 1 or more, got 0"),
        ({"scale_group": 8}, "scale_group: 8, but there is no scale_dtype"),
        ({"alignment": 0}, "alignment: expected 1 or more, got 0"),
        ({"padding_bytes": -1}, "padding_bytes: expected 0 or more, got -1"),
    ],
)
def test_wrong_attention_figures(figures, message):
    good = {"layers": 2, "kv_heads": 2, "head_dim": 4, "page_size": 4, "dtype": BF16}
    attention_layout(**good)
    with pytest.raises(UsageError, match=message):
        attention_layout(**{**good, **figures})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: mla_layout(2, 0, 2, 4, BF16), "latent_dim: expected 1 or more, got 0"),
        (lambda: mla_layout(2, 6, 0, 4, BF16), "rope_dim: expected 1 or more, got 0"),
        (lambda: mla_layout(2, 6, 2, 4, BF16, rope_dtype=2), "dtype of 'rope': expected"),
        (lambda: mla_layout(2, 6, 2, 4, BF16, scale_group=2), "scale_group: 2, but there is no"),
        (lambda: mamba_layout(1, (), (2,), BF16, FP32), r"conv_shape: expected a shape, got \(\)"),
        (lambda: mamba_layout(1, (2,), 3, BF16, FP32), "state_shape: expected a shape, got 3"),
        (lambda: mamba_layout(1, (2,), (3, 0), BF16, FP32), "state_shape: expected 1 or more"),
    ],
)
def test_wrong_latent_and_state_figures(make, message):
    with pytest.raises(UsageError, match=message):
        make()

"""Typed views over page envelopes: what is written through them moves with the pages."""

import numpy as np
import pytest
import torch

from kvdefrag import Arena, PoolSpec, UsageError, attention_layout, mamba_layout, mla_layout

from .envelopes import Envelopes
from .rig import Rig

BF16, FP8, FP16, FP32 = torch.bfloat16, torch.float8_e4m3fn, torch.float16, torch.float32

GQA = attention_layout([3, 7], 2, 8, 4, BF16, value_head_dim=6)
MLA = mla_layout(2, 16, 4, 4, FP8, rope_dtype=BF16, scale_dtype=FP32, scale_group=8)
MAMBA = mamba_layout([0, 1, 2], (6, 3), (2, 4, 3), BF16, FP32, alignment=16)
ODD = attention_layout(3, 1, 64, 16, FP8, scale_dtype=FP32, padding_bytes=107)  # fault 42


def spec(name: str, layout, **options) -> PoolSpec:
    return PoolSpec(name, layout.page_bytes, layout.page_size, **options)


def test_what_views_wrote_moves_with_the_pages(backend):
    specs = [
        spec("full", GQA),
        spec("latent", MLA, grows="float"),
        spec("state", MAMBA, grows="down"),
    ]
    arena = Arena(24 * GQA.page_bytes, specs, "cpu", backend)
    written = [
        Envelopes(arena[name], layout, layout.names, count)
        for name, layout, count in (("full", GQA, 6), ("latent", MLA, 6), ("state", MAMBA, 4))
    ]
    before = {each.pool.name: each.places() for each in written}
    for each, freed in zip(written, ([0, 2], [1, 3], [0]), strict=True):
        assert each.wrong() == []
        each.free(freed)
    moves = {name: result.moves for name, result in arena.flush(urgent=True).items()}
    assert {"full": 2, "state": 1}.items() <= moves.items()
    full, latent, _ = written
    assert sorted(full.places()) == sorted(before["full"])[:4]
    assert [each.wrong() for each in written] == [[], [], []]
    held = latent.places()
    arena["full"].alloc(arena["full"].available())
    assert latent.places() != held
    assert [each.wrong() for each in written] == [[], [], []]
    arena.check(deep=True)


@pytest.mark.parametrize("offset", [0, 1, 8])
def test_odd_envelope_moves_whole(backend, offset):
    rig = Rig.of(backend, 4, page_bytes=6635, page_size=16, offset=offset)
    written = Envelopes(rig.pool, ODD, ["k", "v"], 3)
    strip = slice(ODD.part("k_scale", 0).offset, ODD.part("v_scale", 2).end)
    for row, page in enumerate(written.places()):
        scales = np.random.default_rng(row).integers(0, 256, 384, dtype=np.uint8)
        written.image[row, strip] = scales
        rig.pool.pages[page, strip] = torch.from_numpy(scales)
    written.free([0])
    assert rig.pool.flush(urgent=True).moves == 1
    assert written.places() == [2, 1]
    assert written.wrong() == []
    with pytest.raises(UsageError, match=r"'k_scale' of layer 0 \(torch.float32\) asks for"):
        rig.pool.views(ODD)


@pytest.mark.parametrize("layout", [GQA, MLA, MAMBA], ids=["gqa", "mla", "mamba"])
def test_views_are_the_buffer(layout):
    arena = Arena(5 * layout.page_bytes, [spec("a", layout)], "cpu")
    pool, views = arena["a"], arena["a"].views(layout)
    assert [(layer, list(parts)) for layer, parts in views.items()] == [
        (layer, layout.names) for layer in layout.layers
    ]
    for part in layout.parts:
        view = views[part.layer][part.name]
        assert view.shape == (5, *part.shape)
        assert view.dtype == part.dtype
        assert view[1].data_ptr() == pool.pages.data_ptr() + layout.page_bytes + part.offset
        steps = [step * part.dtype.itemsize for step in view.stride()]
        assert steps == [layout.page_bytes, *part.strides]
        last = view[(-1,) * view.dim()]
        assert (
            last.data_ptr() + part.dtype.itemsize
            == arena.buffer[-layout.page_bytes :].data_ptr() + part.end
        )


def test_whole_rows_and_their_fields_share_bytes():
    layout = mla_layout([2], 6, 2, 4, BF16)
    pool = Arena(3 * layout.page_bytes, [spec("a", layout)], "cpu")["a"]
    parts = pool.views(layout)[2]
    parts["kv"][1] = torch.arange(32).view(4, 8)
    assert parts["latent"][1].tolist() == [[8 * t + i for i in range(6)] for t in range(4)]
    assert parts["rope"][1].tolist() == [[8 * t + 6, 8 * t + 7] for t in range(4)]


def test_some_parts_alone():
    pool = Arena(3 * GQA.page_bytes, [spec("a", GQA)], "cpu")["a"]
    views = pool.views(GQA, ["v"])
    assert {layer: list(parts) for layer, parts in views.items()} == {3: ["v"], 7: ["v"]}


def misaligned_storage(total_bytes: int) -> torch.Tensor:
    """An aligned buffer at an odd place of a storage that starts at an odd address."""
    memory = np.zeros(total_bytes + 128, np.uint8)
    start = 1 + -memory.ctypes.data % 64
    return torch.from_numpy(memory[start:])[63 : 63 + total_bytes]


@pytest.mark.parametrize(
    ("layout", "start", "message"),
    [
        (
            attention_layout(1, 1, 4, 2, BF16, padding_bytes=1),
            0,
            r"'k' of layer 0 \(.*bfloat16\) asks for multiples of 2 bytes, but page_bytes is 33",
        ),
        (
            mamba_layout(1, [3], [4], BF16, FP32, alignment=1, padding_bytes=2),
            0,
            r"'state' of layer 0 \(torch.float32\) asks for multiples of 4 bytes, but offset is 6",
        ),
        (GQA, 1, "asks for multiples of 2 bytes, but the buffer's address is"),
        (MAMBA, 8, "asks for multiples of 16 bytes, but the buffer's address is"),
        (
            attention_layout(1, 1, 4, 2, FP8, alignment=16, padding_bytes=8),
            0,
            "'k' of layer 0 .* asks for multiples of 16 bytes, but page_bytes is 40",
        ),
        (GQA, None, "asks for multiples of 2 bytes, but the buffer's offset in its storage is 63"),
    ],
)
def test_alignment_is_checked(layout, start, message):
    total_bytes = 3 * layout.page_bytes
    if start is None:
        buffer = misaligned_storage(total_bytes)
    else:
        buffer = torch.zeros(total_bytes + start, dtype=torch.uint8)[start:]
    arena = Arena(total_bytes, [spec("a", layout)], buffer=buffer)
    with pytest.raises(UsageError, match=message):
        arena["a"].views(layout)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((MLA,), r"layout: pages of 256 bytes and 4 tokens, but the pool has 448 by"),
        ((attention_layout(2, 2, 28, 1, BF16),), "448 bytes and 1 tokens, but the pool has 448"),
        (({"k": 0},), "layout: expected an EnvelopeLayout, got {'k': 0}"),
        ((GQA, ["k", "q"]), r"names: no part 'q', the parts are \['k', 'v'\]"),
        ((GQA, "k"), "names: expected a list of names of parts, got 'k'"),
    ],
)
def test_wrong_arguments(arguments, message):
    pool = Arena(3 * GQA.page_bytes, [spec("a", GQA)], "cpu")["a"]
    with pytest.raises(UsageError, match=message):
        pool.views(*arguments)


def test_a_pool_without_pages_has_no_views():
    specs = [spec("a", GQA, mover=lambda sources, targets: None)]
    pool = Arena(3 * GQA.page_bytes, specs, "cpu")["a"]
    with pytest.raises(UsageError, match="views: pool 'a' has no pages of its own"):
        pool.views(GQA)

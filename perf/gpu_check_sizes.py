"""How much of everything a GPU check does: on a GPU, and in Triton's interpreter."""

from __future__ import annotations

from dataclasses import dataclass

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

PoolShape = tuple[str, int, int]
"""Name, page bytes and page size in tokens."""

ALL_PAGE_BYTES = (1, 7, 8, 16, 80, 656, 1152, 4096, 6635, 10496, 16384 + 8, 65536)


@dataclass(frozen=True)
class Sizes:
    """``geometries``: buffer bytes and the two pools of each arena that runs in lockstep.

    ``moved_bytes``: what one timed copy reads; ``buffer_bytes``: the working set it is drawn from.
    ``flush_rounds``: by number of moves, the rounds of kvdefrag and of each baseline.
    """

    geometries: tuple[tuple[int, PoolShape, PoolShape], ...]
    lockstep_steps: int
    id_counts: tuple[int, ...]
    token_counts: tuple[int, ...]
    grown_counts: tuple[int, ...]
    zeroed_counts: tuple[int, ...]
    page_bytes: tuple[int, ...]
    offsets: tuple[int, ...]
    moves: int
    many_moves: int
    warm_calls: int
    beyond_32_bits: bool
    moved_bytes: int
    buffer_bytes: int
    timed_page_bytes: tuple[int, ...]
    repetitions: int
    chunked_sweep: tuple[int, ...]
    flat_sweep: tuple[int, ...]
    chunk_words: tuple[int, ...]
    flat_units: tuple[int, ...]
    warps: tuple[int, ...]
    flush_page_bytes: int
    flush_rounds: dict[int, tuple[int, int]]
    call_pages: tuple[int, ...]
    call_rounds: int
    timed_ids: tuple[int, ...]
    zeroed_page_bytes: tuple[int, ...]
    busy_ms: float
    busy_pages: int
    busy_rounds: int


ON_A_GPU = Sizes(
    geometries=(
        (1 << 19, ("full", 656, 16), ("state", 10496, 1)),
        (1 << 22, ("full", 65536, 16), ("state", 16384 + 8, 1)),
        (1 << 15, ("full", 80, 1), ("state", 7, 3)),
    ),
    lockstep_steps=400,
    id_counts=(1, 2, 127, 128, 129, 1000, 70_000),
    token_counts=(1, 2, 127, 128, 129, 2047, 2048, 2049, 4097, 70_000),
    grown_counts=(1, 2, 127, 128, 129, 1000, 70_000),
    zeroed_counts=(1, 2, 7, 129, 1000),
    page_bytes=ALL_PAGE_BYTES,
    offsets=(0, 1, 8, 16),
    moves=37,
    many_moves=70_000,
    warm_calls=1000,
    beyond_32_bits=True,
    moved_bytes=256 * MIB,
    buffer_bytes=4 * GIB + 64 * MIB,
    timed_page_bytes=(512, 656, 1152, 4096, 10496, 16384, 65536, MIB, 4 * MIB),
    repetitions=21,
    chunked_sweep=(4096, 16384, 65536, MIB),
    flat_sweep=(512, 4096, 10496, 16384),
    chunk_words=(1024, 2048, 4096),
    flat_units=(256, 512, 1024),
    warps=(4, 8),
    flush_page_bytes=64 * KIB,
    flush_rounds={16: (51, 21), 256: (31, 11), 4096: (15, 3), 65_536: (5, 1)},
    call_pages=(1, 16, 256, 4096, 65_536),
    call_rounds=31,
    timed_ids=(2048, 65_536),
    zeroed_page_bytes=(4096, 65536),
    busy_ms=200.0,
    busy_pages=512,
    busy_rounds=5,
)

INTERPRETED = Sizes(
    geometries=((1 << 11, ("full", 80, 4), ("state", 7, 3)),),
    lockstep_steps=50,
    id_counts=(1, 129),
    token_counts=(129,),
    grown_counts=(3,),
    zeroed_counts=(7,),
    page_bytes=(1, 7, 16, 656, 16384 + 8),
    offsets=(0, 1),
    moves=3,
    many_moves=20,
    warm_calls=30,
    beyond_32_bits=False,
    moved_bytes=32 * KIB,
    buffer_bytes=256 * KIB,
    timed_page_bytes=(512, 656, 16384),
    repetitions=2,
    chunked_sweep=(16384,),
    flat_sweep=(4096,),
    chunk_words=(1024, 2048),
    flat_units=(512,),
    warps=(4,),
    flush_page_bytes=512,
    flush_rounds={4: (2, 1)},
    call_pages=(1, 8),
    call_rounds=2,
    timed_ids=(32,),
    zeroed_page_bytes=(4096,),
    busy_ms=0.0,
    busy_pages=4,
    busy_rounds=1,
)

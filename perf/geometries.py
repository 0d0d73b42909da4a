"""What one page and one state slot of known models weigh, and the pools that a replay makes of it.

All sizes are bytes over all layers. The figures follow from each model's public `config.json`.

`qwen3.5-9b` (Qwen/Qwen3.5-9B): 32 layers, `full_attention_interval` 4, so 8 full-attention and 24
linear-attention layers. A page of 16 tokens: 8 layers x (K and V) x 4 KV heads x 256 `head_dim` x
2 bytes (bf16) x 16 = 524,288. A state: 24 layers x (32 value heads x 128 x 128 x 4 bytes (fp32) +
8,192 convolution channels x (4 - 1) x 2 bytes) = 51,511,296, which is 98.25 pages. The channels:
16 key heads x 128 for each of query and key, 32 value heads x 128.

`kimi-linear-48b` (moonshotai/Kimi-Linear-48B-A3B-Instruct): 27 layers, 7 of them multi-head latent
attention and 20 Kimi delta attention. A page of 64 tokens: 7 layers x (512 `kv_lora_rank` + 64
`qk_rope_head_dim`) x 2 bytes (bf16) x 64 = 516,096. A state: 20 layers x (32 heads x 128 x 128 x
4 bytes (fp32) + 12,288 convolution channels x (4 - 1) x 2 bytes) = 43,417,600. The channels: query,
key and value of 32 heads x 128 each.

`llama-3.1-8b` (meta-llama/Llama-3.1-8B): 32 layers of full attention, no state. A page of 16
tokens: 32 layers x (K and V) x 8 KV heads x 128 head dim x 2 bytes (bf16) x 16 = 2,097,152.
"""

from dataclasses import dataclass
from fractions import Fraction

from .trace import BLOCK_TOKENS


@dataclass(frozen=True)
class Geometry:
    """Unscaled bytes of one page of `page_size` tokens, and of one state slot (0: no states)."""

    name: str
    page_bytes: int
    page_size: int
    state_bytes: int = 0


@dataclass(frozen=True)
class PoolLayout:
    """The pools of one replay: scaled bytes, unscaled page counts.

    `state_bytes` and `state_slots` are 0 where the geometry has no states. The counts include what
    the allocator keeps for its sink.
    """

    total_bytes: int
    page_bytes: int
    page_size: int
    num_pages: int
    state_bytes: int
    state_slots: int

    @property
    def block_pages(self) -> int:
        """Pages of one full block of the trace."""
        return BLOCK_TOKENS // self.page_size


def _attention_page_bytes(layers: int, kv_heads: int, head_dim: int, page_size: int) -> int:
    return layers * 2 * kv_heads * head_dim * 2 * page_size


def _latent_page_bytes(layers: int, latent_dim: int, page_size: int) -> int:
    return layers * latent_dim * 2 * page_size


def _linear_state_bytes(layers: int, heads: int, head_dim: int, conv_channels: int) -> int:
    return layers * (heads * head_dim * head_dim * 4 + conv_channels * 3 * 2)


DEFAULT_GEOMETRY = "qwen3.5-9b"

GEOMETRIES = {
    geometry.name: geometry
    for geometry in (
        Geometry(
            name=DEFAULT_GEOMETRY,
            page_bytes=_attention_page_bytes(layers=8, kv_heads=4, head_dim=256, page_size=16),
            page_size=16,
            state_bytes=_linear_state_bytes(
                layers=24, heads=32, head_dim=128, conv_channels=2 * 16 * 128 + 32 * 128
            ),
        ),
        Geometry(
            name="kimi-linear-48b",
            page_bytes=_latent_page_bytes(layers=7, latent_dim=512 + 64, page_size=64),
            page_size=64,
            state_bytes=_linear_state_bytes(
                layers=20, heads=32, head_dim=128, conv_channels=3 * 32 * 128
            ),
        ),
        Geometry(
            name="llama-3.1-8b",
            page_bytes=_attention_page_bytes(layers=32, kv_heads=8, head_dim=128, page_size=16),
            page_size=16,
        ),
    )
}


def plan_pools(geometry: Geometry, pool_bytes: int, page_scale: Fraction) -> PoolLayout:
    """Lay out the pools of `pool_bytes` unscaled bytes, with every size scaled by `page_scale`.

    The number of pages is that of the unscaled pool, exactly. Where the scale does not divide a
    size it is rounded, and a slot then adjusted so that the number of slots is kept as well, if any
    whole number of bytes does that. Raises `ValueError` where a size would be less than a byte.
    """
    num_pages = pool_bytes // geometry.page_bytes
    page_bytes = _at_least_a_byte("page", geometry.page_bytes, page_scale)
    total_bytes = num_pages * page_bytes
    if not geometry.state_bytes:
        return PoolLayout(total_bytes, page_bytes, geometry.page_size, num_pages, 0, 0)
    state_slots = pool_bytes // geometry.state_bytes
    if not state_slots:
        raise ValueError(
            f"a pool of {pool_bytes} bytes holds no state slot of {geometry.state_bytes} bytes"
        )
    state_bytes = _at_least_a_byte("state slot", geometry.state_bytes, page_scale)
    smallest, largest = total_bytes // (state_slots + 1) + 1, total_bytes // state_slots
    state_bytes = max(1, min(max(state_bytes, smallest), largest))
    return PoolLayout(
        total_bytes,
        page_bytes,
        geometry.page_size,
        num_pages,
        state_bytes,
        total_bytes // state_bytes,
    )


def _at_least_a_byte(what: str, unscaled_bytes: int, page_scale: Fraction) -> int:
    scaled_bytes = round(unscaled_bytes * page_scale)
    if scaled_bytes < 1:
        raise ValueError(
            f"a {what} of {unscaled_bytes} bytes has less than a byte when scaled by {page_scale}"
        )
    return scaled_bytes

"""What one page and one state slot of known models weigh, and the pools that a replay makes of it.

All sizes are bytes over all layers. The figures follow from each model's public `config.json`. A
token of a model with a sliding window has a place in a page of each of two pools, those of the
layers that keep all tokens and those of the layers that keep the last ones only.

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

`gpt-oss-20b` (openai/gpt-oss-20b): 24 layers, `layer_types` of sliding and full attention by turns,
so 12 of each; `sliding_window` 128 tokens. A page of 16 tokens, in either pool: 12 layers x (K and
V) x 8 KV heads x 64 `head_dim` x 2 bytes (bf16) x 16 = 393,216. A window is 8 pages.

`phi-4-mini-flash` (microsoft/Phi-4-mini-flash-reasoning): 32 layers, `mb_per_layer` 2: those with
even numbers up to 16 are Mamba (9), those with odd ones up to 15 have a window of
`sliding_window` 512 tokens (8), and layer 17 full attention (1); the others keep nothing, their
attention reads the keys and values of layer 17. 20 KV heads of 2,560 `hidden_size` / 40
`num_attention_heads` = 64. A page of 16 tokens: 1 layer x (K and V) x 20 x 64 x 2 bytes (bf16) x
16 = 81,920; in the window 8 layers of it, 655,360, and a window is 32 pages. A state: 9 layers x
5,120 channels x (16 `mamba_d_state` x 4 bytes (fp32) + (4 `mamba_d_conv` - 1) x 2 bytes) =
3,225,600. The channels: 2 `mamba_expand` x 2,560. Those three are not in its `config.json` but
defaults of its configuration class; that the states are fp32 is an assumption, nothing says so.
"""

from dataclasses import dataclass
from fractions import Fraction

from .trace import BLOCK_TOKENS


@dataclass(frozen=True)
class Geometry:
    """Unscaled bytes of one page of `page_size` tokens, and of one state slot (0: no states).

    `window_page_bytes` are those of a page, of as many tokens, in the layers that keep the last
    `window_tokens` only, a block of the trace at most (0: no such layers).
    """

    name: str
    page_bytes: int
    page_size: int
    state_bytes: int = 0
    window_page_bytes: int = 0
    window_tokens: int = 0

    def __post_init__(self) -> None:
        if bool(self.window_page_bytes) != bool(self.window_tokens):
            raise ValueError(
                f"a window has pages and tokens, not {self.window_page_bytes} bytes a page and "
                f"{self.window_tokens} tokens"
            )
        if not 0 <= self.window_tokens <= BLOCK_TOKENS:
            raise ValueError(
                f"a window of {self.window_tokens} tokens does not lie in a block of {BLOCK_TOKENS}"
            )


@dataclass(frozen=True)
class PoolLayout:
    """The pools of one replay: scaled bytes, unscaled page counts.

    `state_bytes` and `state_slots` are 0 where the geometry has no states, and what begins with
    `window_` where it has no window. The counts include what the allocator keeps for its sink.
    """

    total_bytes: int
    page_bytes: int
    page_size: int
    num_pages: int
    state_bytes: int
    state_slots: int
    window_page_bytes: int = 0
    window_pages: int = 0
    window_tokens: int = 0

    @property
    def block_pages(self) -> int:
        """Pages of one full block of the trace."""
        return BLOCK_TOKENS // self.page_size

    @property
    def window_block_pages(self) -> int:
        """Pages at the end of a full block that the window behind it reaches."""
        return -(-self.window_tokens // self.page_size)

    def window_first(self, tokens: int) -> int:
        """The first page with one of the last `window_tokens` of `tokens` tokens."""
        return max(0, tokens - self.window_tokens) // self.page_size


def _attention_page_bytes(layers: int, kv_heads: int, head_dim: int, page_size: int) -> int:
    return layers * 2 * kv_heads * head_dim * 2 * page_size


def _latent_page_bytes(layers: int, latent_dim: int, page_size: int) -> int:
    return layers * latent_dim * 2 * page_size


def _linear_state_bytes(layers: int, heads: int, head_dim: int, conv_channels: int) -> int:
    return layers * (heads * head_dim * head_dim * 4 + conv_channels * 3 * 2)


def _mamba_state_bytes(layers: int, channels: int, state_size: int) -> int:
    return layers * channels * (state_size * 4 + 3 * 2)


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
        Geometry(
            name="gpt-oss-20b",
            page_bytes=_attention_page_bytes(layers=12, kv_heads=8, head_dim=64, page_size=16),
            page_size=16,
            window_page_bytes=_attention_page_bytes(
                layers=12, kv_heads=8, head_dim=64, page_size=16
            ),
            window_tokens=128,
        ),
        Geometry(
            name="phi-4-mini-flash",
            page_bytes=_attention_page_bytes(layers=1, kv_heads=20, head_dim=64, page_size=16),
            page_size=16,
            state_bytes=_mamba_state_bytes(layers=9, channels=2 * 2560, state_size=16),
            window_page_bytes=_attention_page_bytes(
                layers=8, kv_heads=20, head_dim=64, page_size=16
            ),
            window_tokens=512,
        ),
    )
}


def plan_pools(geometry: Geometry, pool_bytes: int, page_scale: Fraction) -> PoolLayout:
    """Lay out the pools of `pool_bytes` unscaled bytes, with every size scaled by `page_scale`.

    The number of pages is that of the unscaled pool, exactly. Where the scale does not divide a
    size it is rounded, and a slot or a page of the window then adjusted so that their number is
    kept as well, if any whole number of bytes does that. Raises `ValueError` where a size would be
    less than a byte.
    """
    num_pages = pool_bytes // geometry.page_bytes
    page_bytes = _at_least_a_byte("page", geometry.page_bytes, page_scale)
    total_bytes = num_pages * page_bytes

    def fitted(what: str, unscaled_bytes: int) -> tuple[int, int]:
        """Scaled bytes of one, and how many there are."""
        if not unscaled_bytes:
            return 0, 0
        count = pool_bytes // unscaled_bytes
        if not count:
            raise ValueError(
                f"a pool of {pool_bytes} bytes holds no {what} of {unscaled_bytes} bytes"
            )
        scaled_bytes = _at_least_a_byte(what, unscaled_bytes, page_scale)
        smallest, largest = total_bytes // (count + 1) + 1, total_bytes // count
        scaled_bytes = max(1, min(max(scaled_bytes, smallest), largest))
        return scaled_bytes, total_bytes // scaled_bytes

    state_bytes, state_slots = fitted("state slot", geometry.state_bytes)
    window_page_bytes, window_pages = fitted("window page", geometry.window_page_bytes)
    return PoolLayout(
        total_bytes,
        page_bytes,
        geometry.page_size,
        num_pages,
        state_bytes,
        state_slots,
        window_page_bytes,
        window_pages,
        geometry.window_tokens,
    )


def _at_least_a_byte(what: str, unscaled_bytes: int, page_scale: Fraction) -> int:
    scaled_bytes = round(unscaled_bytes * page_scale)
    if scaled_bytes < 1:
        raise ValueError(
            f"a {what} of {unscaled_bytes} bytes has less than a byte when scaled by {page_scale}"
        )
    return scaled_bytes

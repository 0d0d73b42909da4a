"""The options of the command `replay`, and what is made of their text."""

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import click

from .baselines import POLICIES
from .geometries import DEFAULT_GEOMETRY, GEOMETRIES
from .trace import BLOCK_TOKENS
from .trace_generator import DEFAULT_REQUESTS

MAX_POOL_GIB = 1 << 20
MAX_RUNNING = 1 << 16
DEFAULT_SPLITS = (50.0, 70.0, 90.0)

Command = Callable[..., Any]


class Listed(click.ParamType):  # type: ignore[type-arg]
    """Values of another type with commas between them; each is kept once."""

    name = "list"

    def __init__(self, item: "click.ParamType[Any]") -> None:
        self._item = item

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Any, ...]:
        """The values as a tuple."""
        if isinstance(value, tuple):
            return value
        parts = [self._item.convert(part.strip(), param, ctx) for part in value.split(",")]
        return tuple(dict.fromkeys(parts))


def parse_scale(_context: click.Context, _option: click.Parameter, value: str) -> Fraction:
    """Turn `1/1024`, `0.5` or `1024` into the factor by which sizes shrink, at most 1."""
    try:
        # Fraction would spell out the digits of a huge exponent; a float tells at once.
        scale = Fraction(value) if "/" in value else Fraction(float(value)).limit_denominator()
    except (ValueError, ZeroDivisionError, OverflowError):
        scale = Fraction(0)
    if scale <= 0:
        raise click.BadParameter(
            f"{value!r} is neither a fraction like 1/1024 nor a divisor like 1024."
        )
    return scale if scale <= 1 else 1 / scale


_OPTIONS = (
    click.option(
        "--trace",
        "trace_path",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Requests in the Mooncake JSON-lines format. "
        f"Default: {DEFAULT_REQUESTS:,} generated requests of the same shape.",
    ),
    click.option(
        "--geometry",
        type=click.Choice(list(GEOMETRIES)),
        help="Model whose page and state sizes to use; gpt-oss-20b has a sliding window beside "
        "full attention, phi-4-mini-flash states as well: three pools in one buffer. "
        f"Default: {DEFAULT_GEOMETRY}.",
    ),
    click.option(
        "--page-bytes",
        type=click.IntRange(min=1),
        help="Unscaled bytes of a page, in place of a geometry.",
    ),
    click.option(
        "--page-size",
        type=click.IntRange(min=1),
        help=f"Tokens of a page, a divisor of {BLOCK_TOKENS}, with --page-bytes. Default: 16.",
    ),
    click.option(
        "--state-bytes",
        type=click.IntRange(min=0),
        help="Unscaled bytes of a state slot, with --page-bytes. "
        "Default: 0, one pool without states.",
    ),
    click.option(
        "--window-page-bytes",
        type=click.IntRange(min=1),
        help="Unscaled bytes of a page in the layers with a sliding window, with --page-bytes. "
        "Default: no such layers.",
    ),
    click.option(
        "--window-tokens",
        type=click.IntRange(1, BLOCK_TOKENS),
        help=f"Tokens that the window reaches back, {BLOCK_TOKENS} at most, "
        "with --window-page-bytes.",
    ),
    click.option(
        "--pool-gib",
        type=Listed(click.FloatRange(min=0, min_open=True, max=MAX_POOL_GIB)),
        default="100",
        metavar="GIB[,GIB...]",
        show_default=True,
        help="Unscaled size of the shared pool in GiB; several with --compare.",
    ),
    click.option(
        "--page-scale",
        callback=parse_scale,
        metavar="SCALE",
        default="1/1024",
        show_default=True,
        help="Shrinks the bytes of pages and states, not their number: "
        "a fraction up to 1, or a divisor from 1 on (1024 means 1/1024).",
    ),
    click.option(
        "--running",
        type=click.IntRange(1, MAX_RUNNING),
        default=64,
        show_default=True,
        help="Requests that run at a time.",
    ),
    click.option(
        "--seed",
        type=click.IntRange(0, 2**63 - 1),
        default=0,
        show_default=True,
        help="Of the generator, and of the sample of --verify sample.",
    ),
    click.option("--limit", type=click.IntRange(min=1), help="Replay only so many requests."),
    click.option(
        "--backend",
        type=click.Choice(["auto", "host", "triton"]),
        default="auto",
        show_default=True,
        help="Where the allocator runs its operations.",
    ),
    click.option(
        "--device",
        type=click.Choice(["cpu", "cuda"]),
        help="Where the pool lives. Default: cuda where there is one, else cpu.",
    ),
    click.option(
        "--verify",
        type=click.Choice(["full", "sample", "off"]),
        help="Stamp and compare every page, 1 page in 16, or none. "
        "Default: full, or sample with --compare.",
    ),
    click.option(
        "--drift",
        type=click.IntRange(min=2),
        metavar="N",
        help="Reorder every N requests, short sessions apart from long ones, "
        "so that the mix changes over time.",
    ),
    click.option(
        "--compare",
        type=Listed(click.Choice(list(POLICIES))),
        metavar="NAME[,NAME...]",
        help=f"Replay the same requests through these baselines as well: {', '.join(POLICIES)}. "
        "They have no shared ids: not for a geometry with a window.",
    ),
    click.option(
        "--split",
        "splits",
        type=Listed(click.FloatRange(min=0, min_open=True, max=100, max_open=True)),
        metavar="PERCENT[,PERCENT...]",
        help="With --compare static: shares of the bytes that token pages get. "
        f"Default: {', '.join(f'{split:g}' for split in DEFAULT_SPLITS)}.",
    ),
    click.option(
        "--device-sync-us",
        type=click.FloatRange(min=0),
        metavar="US",
        help="With --compare: a cost to assume for each device-to-host read, in microseconds. "
        "The result is a model, shown apart from the measured times. Default: 0.",
    ),
    click.option(
        "--json",
        "json_path",
        type=click.Path(dir_okay=False, writable=True, path_type=Path),
        help="Also write the figures to this file.",
    ),
)


def replay_options(command: Command) -> Command:
    """Give `command` every option of `replay`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command

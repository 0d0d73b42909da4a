"""Every variant that the launchers can produce, as recorded launches."""

from itertools import product

import torch

from kvdefrag.kernels.bind import bind, unbind
from kvdefrag.kernels.borrow import bind_borrowed
from kvdefrag.kernels.copy import Rebinding, copy_pages
from kvdefrag.kernels.gather import gather_virtual
from kvdefrag.kernels.layered import Layers, copy_pages_layered
from kvdefrag.kernels.rebind import rebind
from kvdefrag.kernels.take import Take
from kvdefrag.kernels.token_extend import extend
from kvdefrag.kernels.token_free import unbind_tokens
from kvdefrag.kernels.token_group import Segment, unbind_group
from kvdefrag.kernels.token_grow import bind_tokens, decode
from kvdefrag.kernels.token_run import unbind_run
from kvdefrag.kernels.translate import translate, translate_tokens
from kvdefrag.kernels.zero import zero_pages

from .aot import Launch, recorded_launches

ID_DTYPES = (torch.int32, torch.int64)
UNIT_BYTES = (16, 8, 4, 2, 1)
FORMS = {"chunked": 16384, "flat": 32}

TABLE = torch.zeros(10, dtype=torch.int64)
RECORD = torch.zeros(16, dtype=torch.int64)
PAIRS = torch.zeros(4, dtype=torch.int64)
TAKE = Take(4, 0, 1, 1, 1, 1, 1, 0, 2, 1)


def launch_tables() -> list[str]:
    """One launch of each table kernel, for every dtype of its ids; returns their names."""
    names = [
        "gather_virtual",
        "rebind",
        "bind",
        *(
            f"{kind}-{dtype}"
            for dtype in ("int32", "int64")
            for kind in ("bind_borrowed", "unbind_borrowed")
        ),
    ]
    gather_virtual(TABLE, TABLE, PAIRS, PAIRS, PAIRS, RECORD, 1)
    rebind(TABLE, TABLE, PAIRS, PAIRS, PAIRS, RECORD)
    bind(TABLE, TABLE, TABLE, TABLE, RECORD, TAKE, 1)
    for dtype in ID_DTYPES:
        ids = PAIRS.to(dtype)
        bind_borrowed(TABLE, TABLE, TABLE, TABLE, ids, TABLE, RECORD, TAKE, 1, 1)
        unbind(TABLE, TABLE, ids, TABLE, 0, None, 0, RECORD, 1)
    for dtype in ID_DTYPES:
        kind = str(dtype).removeprefix("torch.")
        names += [f"unbind-{kind}", f"translate-{kind}"]
        unbind(TABLE, TABLE, PAIRS.to(dtype), TABLE, 0, TABLE, 0, RECORD, 1)
        translate(TABLE, PAIRS.to(dtype), 10)
    for dtype, out_dtype, wide in product(ID_DTYPES, ID_DTYPES, (False, True)):
        kinds = f"{dtype}-{out_dtype}".replace("torch.", "")
        names.append(f"translate_tokens-{kinds}" + "-wide" * wide)
        # One page only: an int32 ``out`` holds its tokens, and v2p has ids for many more.
        page_size = 2**30 if wide else 16
        translate_tokens(TABLE, PAIRS.to(dtype), PAIRS.to(out_dtype), 1, page_size)
    return names


def launch_tokens() -> list[str]:
    """One launch of each kernel that takes or gives token ids; returns their names."""
    kinds = ("unbind_group", "unbind_group_borrowed")
    names = ["bind_tokens", *(f"{kind}{wide}" for wide in ("", "-wide") for kind in kinds)]
    lists, slots = (TABLE, TABLE, RECORD), (TABLE, 0, TABLE, 0, RECORD)
    borrowed = (TABLE, 0, None, 0, RECORD)
    bind_tokens(TABLE, TABLE, *lists, TAKE, 4, 16, 1)
    for page_size in (16, 2**30):
        segments = [Segment(PAIRS, page_size), Segment(PAIRS.int(), 1)]
        unbind_group(TABLE, TABLE, TABLE, segments, 4, *slots, 1, 1)
        unbind_group(TABLE, TABLE, TABLE, segments, 4, *borrowed, 1, 1)
    for dtype, (page_size, wide) in product(ID_DTYPES, ((16, ""), (2**30, "-wide"))):
        kind = str(dtype).removeprefix("torch.") + wide
        kernels = (
            "unbind_tokens", "unbind_tokens_borrowed", "unbind_run", "decode", "extend",
        )  # fmt: skip
        names += [f"{name}-{kind}" for name in kernels]
        ids = PAIRS.to(dtype)
        unbind_tokens(TABLE, TABLE, TABLE, ids, page_size, 4, *slots, 1, 1)
        unbind_tokens(TABLE, TABLE, TABLE, ids, page_size, 4, *borrowed, 1, 1)
        unbind_run(TABLE, TABLE, ids, page_size, *slots, 1)
        decode(TABLE, TABLE, ids, page_size, *lists, TAKE, 1)
        extend(TABLE, TABLE, ids, ids, ids, 4, page_size, *lists, TAKE, 1)
    return names


def launch_zeros() -> list[str]:
    """One launch of the zeroing kernel for every unit; returns their names."""
    for unit_bytes in UNIT_BYTES:
        buffer = torch.zeros(64 * unit_bytes, dtype=torch.uint8)
        zero_pages(buffer, 3 * unit_bytes, TABLE, TABLE, TABLE, RECORD, TAKE)
    return [f"zero-{unit_bytes}" for unit_bytes in UNIT_BYTES]


def launch_copies() -> list[str]:
    """One launch of each copy kernel, for every unit; returns their names."""
    names = []
    for (form, round_bytes), unit_bytes in product(FORMS.items(), UNIT_BYTES):
        page_bytes = round_bytes + unit_bytes % 16
        buffer = torch.zeros(2 * page_bytes, dtype=torch.uint8)
        names += [f"{kind}-{form}-{unit_bytes}" for kind in ("copy", "copy_rebind", "layered")]
        copy_pages(buffer, PAIRS, PAIRS, page_bytes, RECORD)
        copy_pages(buffer, PAIRS, PAIRS, page_bytes, RECORD, Rebinding(TABLE, TABLE, PAIRS))
        copy_pages_layered(Layers([buffer.view(2, -1)]), PAIRS, PAIRS, RECORD)
    return names


def recorded() -> dict[str, Launch]:
    with recorded_launches() as launches:
        names = launch_tables() + launch_tokens() + launch_zeros() + launch_copies()
    return dict(zip(names, launches, strict=True))


BY_TOKEN = ("bind_tokens", "unbind_tokens", "unbind_group", "unbind_run", "decode", "extend")
LAUNCHES = recorded()
COPIES = [name for name in LAUNCHES if name.startswith(("copy", "layered"))]
ZEROS = [name for name in LAUNCHES if name.startswith("zero")]
TOKENS = [name for name in LAUNCHES if name.startswith(BY_TOKEN)]
TABLES = [name for name in LAUNCHES if name not in COPIES + ZEROS + TOKENS]

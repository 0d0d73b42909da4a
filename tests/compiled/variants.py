"""Every variant that the launchers can produce, as recorded launches."""

from itertools import product

import torch

from kvdefrag.kernels.bind import Take, bind, unbind
from kvdefrag.kernels.copy import Rebinding, copy_pages
from kvdefrag.kernels.gather import gather_virtual
from kvdefrag.kernels.layered import Layers, copy_pages_layered
from kvdefrag.kernels.rebind import rebind
from kvdefrag.kernels.translate import translate, translate_tokens

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
    names = ["gather_virtual", "rebind", "bind"]
    gather_virtual(TABLE, TABLE, PAIRS, PAIRS, PAIRS, RECORD, 1)
    rebind(TABLE, TABLE, PAIRS, PAIRS, PAIRS, RECORD)
    bind(TABLE, TABLE, TABLE, TABLE, RECORD, TAKE, 1)
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
        names = launch_tables() + launch_copies()
    return dict(zip(names, launches, strict=True))


LAUNCHES = recorded()
COPIES = [name for name in LAUNCHES if name.startswith(("copy", "layered"))]
TABLES = [name for name in LAUNCHES if name not in COPIES]

"""What compiled code must look like. Each check raises AssertionError."""

from .aot import Code

MAX_REGISTERS = 64
"""A fifth of the registers an SM has: eight programs of 128 threads and more stay resident."""

ACCESSES = {
    "chunked": {16: 8, 8: 16, 4: 16, 2: 16, 1: 16},
    "flat": dict.fromkeys((16, 8, 4, 2, 1), 4),
}
"""Payload loads, and stores, that one of 128 threads has in flight, by form and unit bytes."""

AMD_NAMES = {
    16: ("dwordx4", "dwordx4"),
    8: ("dwordx2", "dwordx2"),
    4: (r"dword\b", r"dword\b"),
    2: ("ushort", "short"),
    1: ("ubyte", "byte"),
}


def check_lean(code: Code, wide: bool = False) -> None:
    """No spill, no local or shared memory, few registers, no 64-bit division unless ``wide``."""
    assert code.shared_bytes == 0
    assert code.count(r"\b(ld|st)\.(local|shared)") == 0
    assert code.resources["STACK"] == code.resources["LOCAL"] == code.resources["SHARED"] == 0
    assert code.resources["REG"] <= MAX_REGISTERS
    assert (code.count(r"\b(div|rem)\.[su]64") > 0) == wide


def check_width(code: Code, form: str, unit_bytes: int, ids: int) -> None:
    """The payload moves in accesses of ``unit_bytes``, as many as the form intends.

    ``ids``: 8-byte stores beside the payload. 8-byte loads of ids are many, so not counted.
    """
    count = ACCESSES[form][unit_bytes]
    width = r"v2\.b64" if unit_bytes == 16 else rf"b{8 * unit_bytes}"
    assert code.count(rf"st\.global\.{width}\b") == count + ids * (unit_bytes == 8)
    loads = code.count(rf"ld\.global\.{width}\b")
    assert loads == count if unit_bytes != 8 else loads > count
    assert code.count(r"st\.global") == count + ids


def check_rows(code: Code, form: str) -> None:
    """Source and target page are multiplied in 64 bits, as they were loaded, and stay so.

    The one word that is narrowed is the unit number of the flat form.
    """
    assert code.asm["ttir"].count("arith.trunci") == (form == "flat")
    products = code.row_products
    assert len(products) >= 2
    assert all("i64" in kind for kind in products)


def check_order(code: Code) -> None:
    """Every 16-byte load of a tile is issued before its first 16-byte store; nothing stalls."""
    wide = [name for name in code.sass if ".128" in name and name.startswith(("LDG", "STG"))]
    kinds = [name[:3] for name in wide]
    half = len(kinds) // 2
    assert kinds == ["LDG"] * half + ["STG"] * half
    assert half
    check_no_detour(code)


def check_no_detour(code: Code) -> None:
    """No function call, no spill, no way through shared memory."""
    assert not [name for name in code.sass if name.startswith(("CALL", "LDL", "STL", "LDS", "STS"))]


def check_amd(code: Code, shared_bytes: int = 0) -> None:
    """No spill and no private memory; shared memory only for the results of atomics."""
    assert code.shared_bytes == shared_bytes
    assert code.resources["private_segment_fixed_size"] == 0
    assert code.resources["vgpr_spill_count"] == code.resources["sgpr_spill_count"] == 0
    assert code.resources["vgpr_count"] <= MAX_REGISTERS


def check_amd_width(code: Code, form: str, unit_bytes: int, ids: int) -> None:
    """``check_width`` for 256 threads, where each has half as much in flight."""
    count = ACCESSES[form][unit_bytes] // 2
    load, store = AMD_NAMES[unit_bytes]
    assert code.count(rf"global_store_{store}") == count + ids * (unit_bytes == 8)
    loads = code.count(rf"global_load_{load}")
    assert loads == count if unit_bytes != 8 else loads >= count

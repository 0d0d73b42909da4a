"""The operations on plain lists, one id after another: what kernels and twins must agree with.

Written from the launchers' docstrings; shares no code with either.
"""

from collections.abc import Sequence

from kvdefrag.kernels.take import Take

ID_OUT_OF_RANGE = 1
ID_NOT_BOUND = 2
PAGE_OUT_OF_RANGE = 3
PAGE_UNBOUND = 4
PAGE_TAKEN = 5
ID_TAKEN = 6
TABLES_DISAGREE = 7
ID_NOT_LENT = 8
ID_BOUND_HERE = 9
ID_HELD = 10

USAGE = 0
CORRUPT = 8

Row = list[int]


def fault(record: Row, slot: int, *words: int) -> None:
    """``words``: code, call tag, index, source, target, virtual. The first fault wins."""
    if record[slot] == 0:
        record[slot : slot + 7] = [1, *words]


def is_row(table: Row, row: int) -> bool:
    return 1 <= row < len(table)


def gather_virtual(
    v2p: Row, p2v: Row, sources: Row, targets: Row, virtual_ids: Row, record: Row, call_tag: int
) -> None:
    for index, (source, target) in enumerate(zip(sources, targets, strict=True)):
        owner = p2v[source] if is_row(p2v, source) else -1
        code = 0
        if not is_row(p2v, source) or not is_row(p2v, target):
            code = PAGE_OUT_OF_RANGE
        elif owner == -1:
            code = PAGE_UNBOUND
        elif p2v[target] != -1:
            code = PAGE_TAKEN
        elif not is_row(v2p, owner) or v2p[owner] != source:
            code = TABLES_DISAGREE
        virtual_ids[index] = -1 if code else owner
        if code:
            fault(record, CORRUPT, code, call_tag, index, source, target, owner)


def rebind(v2p: Row, p2v: Row, sources: Row, targets: Row, virtual_ids: Row, record: Row) -> None:
    for index, (source, target) in enumerate(zip(sources, targets, strict=True)):
        if record[CORRUPT]:
            sources[index] = targets[index] = 0
            continue
        v2p[virtual_ids[index]] = target
        p2v[target] = virtual_ids[index]
        p2v[source] = -1


def bind(
    v2p: Row, p2v: Row, holes: Row, free_ids: Row, record: Row, take: Take, call_tag: int
) -> Row:
    pages = holes[take.head :][: take.head_count] + holes[take.newer :][: take.newer_count]
    ids = free_ids[take.recycled :][: take.recycled_count]
    for step in range(take.page_count - len(pages)):
        pages.append(take.first_page + step * take.page_step)
    for step in range(take.page_count - len(ids)):
        ids.append(take.first_id + step)
    if record[CORRUPT]:
        return [0] * take.page_count
    out = []
    for index, (page, virtual) in enumerate(zip(pages, ids, strict=True)):
        code = 0
        if page == -1 or virtual == -1:
            out.append(0)
            continue
        if not is_row(p2v, page):
            code = PAGE_OUT_OF_RANGE
        elif not is_row(v2p, virtual):
            code = ID_OUT_OF_RANGE
        elif p2v[page] != -1:
            code = PAGE_TAKEN
        elif v2p[virtual] != -1:
            code = ID_TAKEN
        if code:
            fault(record, CORRUPT, code, call_tag, index, -1, page, virtual)
            out.append(0)
            continue
        v2p[virtual], p2v[page] = page, virtual
        out.append(virtual)
    return out


def bind_borrowed(
    v2p: Row, p2v: Row, lender_v2p: Row, marks: Row, virtual_ids: Row, holes: Row, record: Row,
    take: Take, serial: int, call_tag: int,
) -> None:  # fmt: skip
    pages = holes[take.head :][: take.head_count] + holes[take.newer :][: take.newer_count]
    front = take.page_count - take.back_count - len(pages)
    pages += [take.first_page + step * take.page_step for step in range(front)]
    pages += [take.back_page - step * take.page_step for step in range(take.back_count)]
    if record[CORRUPT]:
        return
    seen = []
    for index, (page, virtual) in enumerate(zip(pages, virtual_ids, strict=True)):
        if page == -1:
            continue
        if not is_row(p2v, page):
            fault(record, CORRUPT, PAGE_OUT_OF_RANGE, call_tag, index, -1, page, virtual)
        elif p2v[page] != -1:
            fault(record, CORRUPT, PAGE_TAKEN, call_tag, index, -1, page, virtual)
        elif not is_row(v2p, virtual):
            fault(record, USAGE, ID_OUT_OF_RANGE, call_tag, index, -1, -1, virtual)
        elif lender_v2p[virtual] == -1:
            fault(record, USAGE, ID_NOT_LENT, call_tag, index, -1, -1, virtual)
        elif virtual in seen or v2p[virtual] != -1:
            fault(record, USAGE, ID_BOUND_HERE, call_tag, index, -1, -1, virtual)
        else:
            v2p[virtual], p2v[page] = page, virtual
        if is_row(p2v, page):
            seen.append(virtual)


def is_held(holders: Sequence[Row], virtual: int) -> bool:
    return any(is_row(row, virtual) and row[virtual] != -1 for row in holders)


def unbind(
    v2p: Row, p2v: Row, virtual_ids: Row,
    holes: Row, holes_end: int, free_ids: Row | None, free_ids_end: int,
    record: Row, call_tag: int, holders: Sequence[Row] = (),
) -> None:  # fmt: skip
    if record[CORRUPT]:
        return
    seen = set()
    for index, virtual in enumerate(virtual_ids):
        held = is_held(holders, virtual)
        asked = is_row(v2p, virtual) and virtual not in seen and not held
        page = v2p[virtual] if asked else -1
        seen.add(virtual)
        good = is_row(p2v, page) and p2v[page] == virtual
        holes[holes_end + index] = page if good else -1
        if free_ids is not None:
            free_ids[free_ids_end + index] = virtual if good else -1
        if good:
            v2p[virtual] = p2v[page] = -1
        elif page != -1:
            fault(record, CORRUPT, TABLES_DISAGREE, call_tag, index, page, -1, virtual)
        else:
            code = ID_NOT_BOUND if is_row(v2p, virtual) else ID_OUT_OF_RANGE
            code = ID_HELD if held else code
            fault(record, USAGE, code, call_tag, index, -1, -1, virtual)


def place(v2p: Row, virtual: int, num_pages: int) -> int:
    page = v2p[virtual] if 0 <= virtual < len(v2p) else 0
    return page if 0 <= page < num_pages else 0


def translate(v2p: Row, virtual_ids: Row, num_pages: int) -> Row:
    return [place(v2p, virtual, num_pages) for virtual in virtual_ids]


def translate_tokens(v2p: Row, token_ids: Row, out: Row, num_pages: int, page_size: int) -> None:
    for index, token in enumerate(token_ids):
        page = place(v2p, token // page_size, num_pages)
        bound = 0 <= token // page_size < len(v2p) and v2p[token // page_size] == page
        out[index] = page * page_size + token % page_size if bound else 0


def copy_pages(buffer: bytes, sources: Row, targets: Row, page_bytes: int) -> bytes:
    after = bytearray(buffer)
    for source, target in zip(sources, targets, strict=True):
        page = buffer[source * page_bytes : (source + 1) * page_bytes]
        after[target * page_bytes : (target + 1) * page_bytes] = page
    return bytes(after)

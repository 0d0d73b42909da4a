"""The token operations on plain lists, one token after another: as ``model``."""

from collections.abc import Sequence

from kvdefrag.kernels.take import Take

from .model import (
    CORRUPT,
    ID_HELD,
    ID_NOT_BOUND,
    ID_OUT_OF_RANGE,
    ID_TAKEN,
    PAGE_OUT_OF_RANGE,
    PAGE_TAKEN,
    TABLES_DISAGREE,
    USAGE,
    Row,
    fault,
    is_held,
    is_row,
)

TOKEN_OUT_OF_RANGE = 11
TOKEN_OUT_OF_PLACE = 12
COUNT_DIFFERS = 13
LENGTHS_OUT_OF_ORDER = 14

MAX_LENGTH = 2**31 - 1


def unbind_one(
    v2p: Row, p2v: Row, virtual: int, record: Row, call_tag: int, index: int, holders: Sequence[Row]
) -> tuple[int, int]:
    page = v2p[virtual]
    if is_held(holders, virtual):
        fault(record, USAGE, ID_HELD, call_tag, index, -1, -1, virtual)
        return -1, -1
    if is_row(p2v, page) and p2v[page] == virtual:
        v2p[virtual] = p2v[page] = -1
        return page, virtual
    if page == -1:
        fault(record, USAGE, ID_NOT_BOUND, call_tag, index, -1, -1, virtual)
    else:
        fault(record, CORRUPT, TABLES_DISAGREE, call_tag, index, page, -1, virtual)
    return -1, -1


def unbind_pairs(
    v2p: Row, p2v: Row, tokens: list[tuple[int, int, bool]], page_count: int,
    holes: Row, holes_end: int, free_ids: Row | None, free_ids_end: int,
    record: Row, call_tag: int, holders: Sequence[Row],
) -> None:  # fmt: skip
    """``tokens``: each, the page size that it counts in, and whether it must have a page.

    Without ``free_ids`` those that need not are passed over if they have none.
    """
    seen: list[int] = []
    before = list(v2p)

    def put(place: int, page: int, virtual: int) -> None:
        holes[holes_end + place] = page
        if free_ids is not None:
            free_ids[free_ids_end + place] = virtual

    for place in range(page_count):
        put(place, -1, -1)
    for index, (token, page_size, strict) in enumerate(tokens):
        virtual = token // page_size
        lacks_page = is_row(v2p, virtual) and before[virtual] == -1
        if free_ids is None and not strict and (-1 <= token < page_size or lacks_page):
            continue
        if not is_row(v2p, virtual):
            is_page = free_ids is None and page_size == 1
            code = ID_OUT_OF_RANGE if is_page else TOKEN_OUT_OF_RANGE
            fault(record, USAGE, code, call_tag, index, -1, -1, token)
        elif virtual not in seen:
            seen.append(virtual)
            place = len(seen) - 1
            if place < page_count:
                put(place, *unbind_one(v2p, p2v, virtual, record, call_tag, index, holders))
    if len(seen) != page_count:
        fault(record, USAGE, COUNT_DIFFERS, call_tag, len(seen), -1, -1, -1)


def unbind_tokens(
    v2p: Row, p2v: Row, marks: Row, token_ids: Row, page_size: int, page_count: int,
    holes: Row, holes_end: int, free_ids: Row | None, free_ids_end: int,
    record: Row, serial: int, call_tag: int, holders: Sequence[Row] = (),
) -> None:  # fmt: skip
    if token_ids and not record[CORRUPT]:
        pairs = [(token, page_size, False) for token in token_ids]
        lists = (holes, holes_end, free_ids, free_ids_end)
        unbind_pairs(v2p, p2v, pairs, page_count, *lists, record, call_tag, holders)


def unbind_run(
    v2p: Row, p2v: Row, token_ids: Row, page_size: int,
    holes: Row, holes_end: int, free_ids: Row, free_ids_end: int, record: Row, call_tag: int,
    holders: Sequence[Row] = (),
) -> None:  # fmt: skip
    if record[CORRUPT]:
        return
    seen: list[int] = []
    for index, token in enumerate(token_ids[::page_size]):
        page = freed = -1
        virtual = token // page_size
        if not is_row(v2p, virtual):
            fault(record, USAGE, TOKEN_OUT_OF_RANGE, call_tag, index, -1, -1, token)
        elif token % page_size:
            fault(record, USAGE, TOKEN_OUT_OF_PLACE, call_tag, index, -1, -1, token)
        elif virtual in seen and not is_held(holders, virtual):
            fault(record, USAGE, ID_NOT_BOUND, call_tag, index, -1, -1, virtual)
        else:
            seen.append(virtual)
            page, freed = unbind_one(v2p, p2v, virtual, record, call_tag, index, holders)
        holes[holes_end + index], free_ids[free_ids_end + index] = page, freed


def bind_one(
    v2p: Row, p2v: Row, holes: Row, free_ids: Row, record: Row, take: Take, place: int, tag: int
) -> int:
    pages = holes[take.head :][: take.head_count] + holes[take.newer :][: take.newer_count]
    listed = len(pages)
    front = take.page_count - take.back_count
    if place >= front:
        page = take.back_page - (place - front) * take.page_step
    elif place < listed:
        page = pages[place]
    else:
        page = take.first_page + (place - listed) * take.page_step
    virtual = take.first_id + place - take.recycled_count
    if place < take.recycled_count:
        virtual = free_ids[take.recycled + place]
    if -1 in (page, virtual):
        return 0
    if not is_row(p2v, page):
        fault(record, CORRUPT, PAGE_OUT_OF_RANGE, tag, place, -1, page, virtual)
    elif p2v[page] != -1:
        fault(record, CORRUPT, PAGE_TAKEN, tag, place, -1, page, virtual)
    elif v2p[virtual] != -1:
        fault(record, CORRUPT, ID_TAKEN, tag, place, -1, page, virtual)
    else:
        v2p[virtual], p2v[page] = page, virtual
        return virtual
    return 0


def page_tokens(virtual: int, page_size: int) -> Row:
    return [virtual * page_size + at if virtual else 0 for at in range(page_size)]


def bind_tokens(
    v2p: Row, p2v: Row, holes: Row, free_ids: Row, record: Row, take: Take,
    token_count: int, page_size: int, call_tag: int,
) -> Row:  # fmt: skip
    out: Row = []
    stopped = record[CORRUPT]
    for place in range(take.page_count):
        lists = (v2p, p2v, holes, free_ids, record, take)
        virtual = 0 if stopped else bind_one(*lists, place, call_tag)
        out += page_tokens(virtual, page_size)
    return out[:token_count]


def decode(
    v2p: Row, p2v: Row, last_tokens: Row, page_size: int, holes: Row, free_ids: Row,
    record: Row, take: Take, call_tag: int,
) -> Row:  # fmt: skip
    if record[CORRUPT]:
        return [0] * len(last_tokens)
    before, out, found = list(v2p), [], 0
    for index, last in enumerate(last_tokens):
        page, offset = divmod(last + 1, page_size)
        value = 0
        if not -1 <= last < len(v2p) * page_size:
            fault(record, USAGE, TOKEN_OUT_OF_RANGE, call_tag, index, -1, -1, last)
        elif offset == 0:
            if found < take.page_count:
                lists = (v2p, p2v, holes, free_ids, record, take)
                value = bind_one(*lists, found, call_tag) * page_size
            found += 1
        elif page == 0 or before[page] <= 0:
            fault(record, USAGE, ID_NOT_BOUND, call_tag, index, -1, -1, page)
        else:
            value = last + 1
        out.append(value)
    if found != take.page_count:
        fault(record, USAGE, COUNT_DIFFERS, call_tag, found, -1, -1, -1)
    return out


def extend(
    v2p: Row, p2v: Row, prefix_lens: Row, new_lens: Row, last_tokens: Row,
    token_count: int, page_size: int, holes: Row, free_ids: Row,
    record: Row, take: Take, call_tag: int,
) -> Row:  # fmt: skip
    if record[CORRUPT] or not prefix_lens:
        return [0] * token_count
    before, out, pages = list(v2p), [], 0
    for index, (prefix, length, last) in enumerate(
        zip(prefix_lens, new_lens, last_tokens, strict=True)
    ):
        if not 0 <= prefix <= length <= MAX_LENGTH:
            fault(record, USAGE, LENGTHS_OUT_OF_ORDER, call_tag, index, -1, -1, -1)
            continue
        good = False
        if prefix % page_size and length > prefix:
            page, offset = divmod(last, page_size)
            if not is_row(v2p, page):
                fault(record, USAGE, TOKEN_OUT_OF_RANGE, call_tag, index, -1, -1, last)
            elif offset != (prefix - 1) % page_size:
                fault(record, USAGE, TOKEN_OUT_OF_PLACE, call_tag, index, -1, -1, last)
            elif before[page] <= 0:
                fault(record, USAGE, ID_NOT_BOUND, call_tag, index, -1, -1, page)
            else:
                good = True
        virtual, tail = 0, last
        in_tail = True
        for position in range(prefix, length):
            if position % page_size == 0:
                in_tail, virtual = False, 0
                if pages < take.page_count and len(out) < token_count:
                    lists = (v2p, p2v, holes, free_ids, record, take)
                    virtual = bind_one(*lists, pages, call_tag)
                pages += 1
            tail += 1
            if in_tail:
                out.append(tail if good else 0)
            else:
                out.append(virtual * page_size + position % page_size if virtual else 0)
    if pages != take.page_count or len(out) != token_count:
        fault(record, USAGE, COUNT_DIFFERS, call_tag, pages, -1, -1, -1)
    return (out + [0] * token_count)[:token_count]

"""What pools that share ids refuse: on the host at once, from the device at the next look."""

import pytest
import torch

from kvdefrag import Arena, PoolSpec, UsageError
from kvdefrag.allocator.testing import stamp_pages, wrong_pages

from .rig import state_of
from .sharing import bound, sharing


@pytest.mark.parametrize("free", [
    lambda pool: pool.free(torch.tensor([3, 5])),
    lambda pool: pool.free([3, 5]),
    lambda pool: pool.free_tokens(torch.tensor([13, 21, 12]), 2),
    lambda pool: (pool.free_token_run(torch.arange(12, 16)), pool.free([5])),
])  # fmt: skip
def test_an_id_that_others_hold_is_not_freed(backend, free):
    arena = sharing(backend)
    full, window = arena["full"], arena["window"]
    full.alloc(8)
    window.bind([3])
    stamp_pages(window, torch.tensor([3]))
    free(full)
    with pytest.raises(UsageError, match=r"'full': virtual id still has a page .* virtual id 3 "):
        arena.check()
    assert bound(arena, "full") == [1, 2, 3, 4, 6, 7, 8]
    assert bound(arena, "window") == [3]
    assert wrong_pages(window, torch.tensor([3])) == []
    arena.check(deep=True)
    window.release([3])
    full.free([3])
    assert full.live_pages == 6
    arena.check(deep=True)


def grouped(arena, *calls):
    """Calls of pools, by name, with their ids, in one group."""
    with arena.free_group():
        for name, call, *arguments in calls:
            getattr(arena[name], call)(*arguments)


def test_debug_finds_what_a_group_forgets(backend):
    arena = sharing(backend, debug=True)
    arena["window"].bind(arena["full"].alloc(6))
    before = state_of(arena)
    for released in ([1, 2], [1]):
        with pytest.raises(UsageError, match=r"id [23] of pool 'full' still has a page in 'wind"):
            grouped(arena, ("full", "free", [1, 2, 3]), ("window", "release", released))
    with pytest.raises(UsageError, match=r"id 1 of pool 'window' is there twice"):
        grouped(arena, ("window", "release", [1]), ("window", "release", [2, 1]))
    assert state_of(arena) == before


def refusal(arena, call):
    call(arena)
    arena.check()


REFUSED = [
    (lambda a: a["window"].bind(torch.tensor([4, 9])), "id.* 9", "not allocated"),
    (lambda a: a["window"].bind(torch.tensor([4, 2])), "id.* 2", "has a page|already"),
    (lambda a: a["window"].bind(torch.tensor([4, 4])), "4", "twice"),
    (lambda a: a["window"].bind(torch.tensor([4, 0])), "0", "out of range|expected 1"),
    (lambda a: a["window"].bind(torch.tensor([4, 10**9])), "1000000000", "range|expected 1"),
    (lambda a: a["window"].release(torch.tensor([2, 4])), "id.* 4", "without a page|has no page"),
    (lambda a: a["window"].release(torch.tensor([2, 2])), "2", "twice"),
    (lambda a: a["window"].release(torch.tensor([2, 4]), 2), "1", "page_count"),
    (lambda a: a["window"].release(torch.tensor([2, 4]), 0), "1", "page_count"),
    (lambda a: a["window"].release(torch.tensor([2, -2]), 1), "-2", "range|expected -1"),
    (lambda a: a["window"].release(torch.tensor([2, 200]), 1), "200", "range|expected -1"),
    (lambda a: a["window"].release_tokens(torch.tensor([9, 800]), 1), "800", "range|expected -1"),
    (lambda a: a["full"].free(torch.tensor([4, 2])), "id.* 2", "still has a page"),
    (lambda a: a["full"].free([1, 2], cascade={"window": 2}), "", "page_count|cascade"),
]


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize(("call", "named", "why"), REFUSED)
def test_what_only_the_device_knows_is_refused(backend, debug, call, named, why):
    arena = sharing(backend, debug)
    full, window = arena["full"], arena["window"]
    full.alloc(8)
    window.bind([2, 3, 1])
    window.release([1])
    full.free([8])
    stamp_pages(window, torch.tensor([2, 3]))
    before = state_of(arena)
    with pytest.raises(UsageError) as found:
        refusal(arena, call)
    message = str(found.value)
    assert why_in(why, message), message
    assert all(part in message for part in named.split("id.* ")), message
    if debug:
        assert state_of(arena) == before
    arena.check(deep=True)
    left = [virtual for virtual in (2, 3) if virtual in bound(arena, "window")]
    assert wrong_pages(window, torch.tensor(left)) == []
    window.bind(
        [virtual for virtual in bound(arena, "full") if virtual not in bound(arena, "window")]
    )
    assert bound(arena, "window") == bound(arena, "full")
    arena.check(deep=True)


def why_in(why: str, message: str) -> bool:
    return any(part in message for part in why.split("|"))


HOST_REFUSED = [
    (lambda a: a["window"].bind([1, 1]), r"virtual_ids\[1\]: 1 is there twice"),
    (lambda a: a["window"].bind([0]), r"virtual_ids\[0\]: expected 1 to 127, got 0"),
    (lambda a: a["window"].bind([128]), r"virtual_ids\[0\]: expected 1 to 127, got 128"),
    (lambda a: a["window"].bind([1, 2, 3, 4, 5]), "virtual_ids: 5 ids, but 3 of pool 'full'"),
    (lambda a: a["window"].bind(torch.ones(1)), "virtual_ids: expected int64 or int32"),
    (lambda a: a["window"].release([128], 1), r"virtual_ids\[0\]: expected -1 to 127, got 128"),
    (lambda a: a["window"].release([-2, 1], 1), r"virtual_ids\[0\]: expected -1 to 127, got -2"),
    (lambda a: a["window"].release([1, 2, 3]), "virtual_ids: 3 pages, but pool 'window' has 2"),
    (lambda a: a["window"].release([1, 2, 3], 3), "virtual_ids: 3 pages, but pool 'window' has 2"),
    (lambda a: a["window"].release([1], 2), "page_count: 1 virtual_ids cannot be of 2 pages"),
    (lambda a: a["window"].release([1], -1), "page_count: expected 0 or more, got -1"),
    (lambda a: a["window"].release([1], 1.0), "page_count: expected an integer, got 1.0"),
    (lambda a: a["window"].release([1, 1]), r"virtual_ids\[1\]: 1 is there twice"),
    (lambda a: a["window"].alloc(1), "alloc: pool 'window' borrows its ids from 'full'"),
    (lambda a: a["window"].try_alloc(1), "alloc: pool 'window' borrows"),
    (lambda a: a["window"].alloc_tokens(1), "alloc_tokens: pool 'window' borrows"),
    (lambda a: a["window"].decode(torch.tensor([5]), 0), "decode: pool 'window' borrows"),
    (lambda a: a.alloc_many({"full": 1, "window": 2}), r"page_counts\['window'\]: 2 pages, but 1"),
    (lambda a: a.alloc_many({"window": 1}), r"page_counts\['window'\]: 1 pages, but 0 ids are"),
    (lambda a: a["window"].free([1]), "free: pool 'window' borrows"),
    (lambda a: a["window"].free_tokens([4], 1), "free_tokens: pool 'window' borrows"),
    (lambda a: a["window"].free_token_run([4, 5]), "free_token_run: pool 'window' borrows"),
    (lambda a: a["full"].bind([1]), "bind: pool 'full' has ids of its own"),
    (lambda a: a["full"].release([1]), "release: pool 'full' has ids of its own"),
    (lambda a: a["full"].release_tokens([4], 1), "release_tokens: pool 'full' has ids of its own"),
    (lambda a: a["full"].free([1], cascade={"state": 1}), r"cascade: pool 'state' does not borrow"),
    (lambda a: a["full"].free([1], cascade={"full": 1}), r"cascade: pool 'full' does not borrow"),
    (lambda a: a["full"].free([1], cascade=["window"]), "cascade: expected a dict"),
    (lambda a: a["full"].free([1], cascade={"window": 2}), r"cascade\['window'\]: 2 pages of 1"),
    (lambda a: a["full"].free([1], cascade={"window": -1}), r"cascade\['window'\]: expected 0 or"),
    (lambda a: a["full"].free([1, 2, 3], cascade={"window": 3}), r"cascade\['window'\]: 3 pag"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), HOST_REFUSED)
def test_what_the_host_knows_changes_nothing(backend, call, message):
    arena = sharing(backend)
    arena["full"].alloc(5)
    arena["window"].bind([1, 2])
    before = state_of(arena)
    with pytest.raises(UsageError, match=f"^{message}"):
        call(arena)
    assert state_of(arena) == before


@pytest.mark.parametrize(("specs", "message"), [
    ([PoolSpec("a", 8, ids_from="b")], "ids_from: pool 'a' borrows from 'b', but .* are \\[\\]"),
    ([PoolSpec("a", 8, ids_from="a")], "ids_from: pool 'a' borrows from 'a'"),
    ([PoolSpec("a", 8), PoolSpec("b", 8, grows="down", ids_from="a"),
      PoolSpec("c", 8, grows="float", ids_from="b")], "ids_from: pool 'c' borrows from 'b'"),
])  # fmt: skip
def test_ids_come_from_a_pool_that_has_its_own(specs, message):
    with pytest.raises(UsageError, match=message):
        Arena(800, specs, "cpu", "host")


@pytest.mark.parametrize(("field", "value", "message"), [
    ("ids_from", 3, "ids_from: expected the name of a pool, got 3"),
    ("virtual_pages", 5, "virtual_pages: pool 'b' has the ids of 'a', got 5"),
])  # fmt: skip
def test_bad_spec(field, value, message):
    with pytest.raises(UsageError, match=message):
        PoolSpec("b", 8, **{"ids_from": "a", field: value})


@pytest.mark.parametrize("counts", [None, {"window": 1}])
@pytest.mark.parametrize("missing", [9, 0, -1])
def test_a_dense_release_in_a_group_has_no_gaps(backend, counts, missing):
    arena = sharing(backend)
    arena["window"].bind(arena["full"].alloc(10)[:4])
    with arena.free_group(counts):
        arena["window"].release(torch.tensor([1]), 1)
        arena["window"].release(torch.tensor([missing]))
    # One page too many is stated wrong as well, if the caller says how many there are.
    named = r"page_count: .* 2 pages" if counts and missing == 9 else f"virtual id {missing} "
    with pytest.raises(UsageError, match=named):
        arena.check()
    assert bound(arena, "window") == [2, 3, 4]
    arena.check(deep=True)
    with arena.free_group():
        arena["window"].release(torch.tensor([2, missing]))
    with pytest.raises(UsageError, match=rf"virtual id {missing} "):
        arena.check()
    assert bound(arena, "window") == [3, 4]
    arena.check(deep=True)


def test_what_a_kernel_cannot_count_is_refused_before_anything_is_freed(backend):
    arena = sharing(backend)
    full, window = arena["full"], arena["window"]
    ids = full.alloc(6)
    window.bind(ids)
    far = ids[:1].as_strided((1,), (2**31,))
    many = torch.zeros(1, dtype=torch.int64).expand(2**31)
    before = state_of(arena)
    for call in (window.release, full.free, window.bind, window.translate, window.lease):
        with pytest.raises(UsageError, match=r"virtual_ids: expected strides up to"):
            call(far)
    with pytest.raises(UsageError, match=r"virtual_ids: at most \d+ in one call"):
        window.release(many, 0)
    with pytest.raises(UsageError, match=r"token_ids: at most \d+ in one call"):
        window.release_tokens(many, 0)
    half = many[: 2**30 + 2**29]
    with pytest.raises(UsageError, match=r"free_group: at most \d+ ids of pool 'window'"):
        grouped(arena, *[("window", "release", half, 0)] * 2)
    assert state_of(arena) == before


def test_a_good_bind_is_not_blamed_for_a_bad_one_before(backend):
    arena = sharing(backend)
    ids = arena["full"].alloc(4)
    arena["window"].bind(ids[:2])
    arena["window"].bind(ids[:2])
    with pytest.raises(UsageError, match=r"has a page here already.* virtual id 1 "):
        arena["window"].bind(ids[2:])
    arena["window"].bind(ids[2:])
    assert bound(arena, "window") == [1, 2, 3, 4]
    arena.check(deep=True)


def test_debug_names_the_argument(backend):
    arena = sharing(backend, debug=True)
    arena["window"].bind(arena["full"].alloc(5)[:4])
    for call, message in (
        (lambda: arena["window"].release(torch.tensor([5])), "id 5 of pool 'window' has no page"),
        (lambda: arena["full"].free([1]), "virtual_ids: id 1 of pool 'full' still has"),
        (lambda: arena["full"].free_tokens([4], 1), "token_ids: id 1 of pool 'full' still has"),
        (lambda: arena["full"].free([1, 5], cascade={"window": 2}), r"cascade\['window'\]: expect"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=message):
            call()

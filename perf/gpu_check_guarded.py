"""A kernel beside its host twin: guarded memory, tables to run on, and the comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import torch

from kvdefrag.kernels.launch import Words
from kvdefrag.kernels.record import CORRUPT, RECORD_WORDS
from kvdefrag.kernels.take import Take

from .gpu_check_report import Report, require

GUARD_WORDS = 160
"""More than the lanes of a program, so that a lost mask meets a guard."""

GARBAGE = {torch.int64: 2**62, torch.int32: 2**30, torch.uint8: 0x5A}

FORMS = ((torch.int64, 1), (torch.int32, 1), (torch.int64, 3), (torch.int32, 2))
"""Dtype and stride of ids that come from a caller."""

CALL_TAG = 0x51

MANY = 4096
"""Of more ids than these, one page size is enough."""

FIRST_AT = 4
"""Where ``list_of`` begins to hold entries."""


class Guarded:
    """``values``, ``stride`` apart, with garbage before, between and after them.

    ``rows``: the kernel gets them as that many rows. ``scratch``: what is left in them is the
    kernel's own business; the guards are compared all the same.
    """

    def __init__(
        self,
        values: npt.NDArray[Any] | Sequence[int],
        dtype: torch.dtype = torch.int64,
        stride: int = 1,
        rows: int = 0,
        scratch: bool = False,
    ) -> None:
        other = 0xFF if dtype == torch.uint8 else -1
        self.whole = torch.full((len(values) * stride + 2 * GUARD_WORDS,), other, dtype=dtype)
        self.whole[::2] = GARBAGE[dtype]
        self.part = slice(GUARD_WORDS, GUARD_WORDS + len(values) * stride, stride)
        self.whole[self.part] = torch.as_tensor(np.asarray(values)).to(dtype)
        self.rows = rows
        self.scratch = scratch

    def view(self, whole: torch.Tensor) -> torch.Tensor:
        """The values in a copy of ``whole``."""
        part = whole[self.part]
        return part.view(self.rows, -1) if self.rows else part


class Case(NamedTuple):
    """One call. ``arguments`` holds Guarded memory, lists of segments with it, plain values."""

    launcher: Callable[..., Any]
    twin: Callable[..., Any]
    arguments: tuple[Any, ...]


class Tables(NamedTuple):
    """Consistent tables, int64; ``pages[i]`` is bound to ``ids[i]``, ``free_pages`` are not."""

    v2p: Words
    p2v: Words
    pages: Words
    ids: Words
    free_pages: Words
    free_ids: Words


def page_sizes(count: int) -> tuple[int, ...]:
    """Tokens a page to try with ``count`` ids."""
    return (1, 3) if count <= MANY else (16,)


def check_cases(
    device: torch.device,
    counts: Sequence[int],
    makers: Sequence[Callable[[int], Iterator[Case]]],
    report: Report,
) -> None:
    """Every case that the ``makers`` have for every count: one check each."""
    for count in counts:
        for make in makers:
            name = make.__name__.strip("_").replace("_", " ")
            with report.check(f"kernels against twins: {name} of {count} ids"):
                for number, case in enumerate(make(count)):
                    run_both(device, case, f"case {number}")


def run_both(device: torch.device, case: Case, what: str) -> None:
    """Run the kernel on the device and the twin on the CPU, then compare everything."""
    sides = [
        _run(case.launcher, device, case.arguments, False),
        _run(case.twin, torch.device("cpu"), case.arguments, True),
    ]
    require(len(sides[0]) == len(sides[1]), f"{what}: one side gave a result, the other none")
    for index, (ours, twin) in enumerate(zip(*sides, strict=True)):
        require(ours.shape == twin.shape, f"{what}: memory {index} differs in length")
        wrong = (ours != twin).nonzero().flatten()[:1].tolist()
        for at in wrong:
            require(
                False,
                f"{what}: memory {index}, word {at - GUARD_WORDS}: {int(ours[at])} on the device, "
                f"{int(twin[at])} on the host",
            )


def _run(
    operation: Callable[..., Any], place: torch.device, arguments: Sequence[Any], numpy: bool
) -> list[torch.Tensor]:
    """All memory that ``operation`` was given, on the CPU, and its result if it has one."""
    wholes: list[tuple[Guarded, torch.Tensor]] = []

    def placed(argument: Any) -> Any:
        if isinstance(argument, Guarded):
            wholes.append((argument, argument.whole.to(place, copy=True)))
            part = argument.view(wholes[-1][1])
            return part.numpy() if numpy else part
        if isinstance(argument, list):
            return [each._replace(token_ids=placed(each.token_ids)) for each in argument]
        return argument

    with _guarded_results() as results:
        result = operation(*map(placed, arguments))
    for whole in results:
        for guard in (whole[:GUARD_WORDS], whole[-GUARD_WORDS:]):
            require(bool((guard == GARBAGE[torch.int64]).all()), "a word beside the result changed")
    found = []
    for guarded, whole in wholes:
        if guarded.scratch:
            whole[guarded.part] = 0
        found.append(whole.cpu())
    return found if result is None else [*found, torch.as_tensor(result).cpu()]


@contextmanager
def _guarded_results() -> Iterator[list[torch.Tensor]]:
    """Guards around what a launcher makes for its result, and none between."""
    made: list[torch.Tensor] = []
    empty: Any = torch.empty

    def guarded(count: Any, **options: Any) -> torch.Tensor:
        if not isinstance(count, int) or options.get("dtype") != torch.int64:
            plain: torch.Tensor = empty(count, **options)
            return plain
        whole: torch.Tensor = empty(count + 2 * GUARD_WORDS, **options)
        made.append(whole.fill_(GARBAGE[torch.int64]))
        return whole[GUARD_WORDS : GUARD_WORDS + count]

    with patch.object(torch, "empty", guarded):
        yield made


def blank_record(stopped: bool = False) -> Guarded:
    """A fault record, blank or with a corrupt state in it."""
    words = np.zeros(RECORD_WORDS, np.int64)
    words[CORRUPT.value] = int(stopped)
    return Guarded(words)


def list_of(count: int) -> Guarded:
    """A list with room for ``count`` entries from ``FIRST_AT`` on, and some beyond."""
    return Guarded(np.full(count + 9, 3, np.int64))


def make_tables(count: int, seed: int) -> Tables:
    """Room for ``count`` more on both sides, within and beyond the used rows."""
    draw = np.random.default_rng(seed)
    used, rows = 2 * count + 20, 3 * count + 60
    pages, ids = (1 + draw.permutation(used - 1) for _ in range(2))
    live = count + 5
    v2p, p2v = np.full(rows + 9, -1, np.int64), np.full(rows, -1, np.int64)
    v2p[0] = p2v[0] = 0
    v2p[ids[:live]], p2v[pages[:live]] = pages[:live], ids[:live]
    return Tables(v2p, p2v, pages[:live], ids[:live], pages[live:], ids[live:])


class Grant(NamedTuple):
    """What a take of pages is read from: its lists, int64, with void slots around the entries."""

    take: Take
    holes: Words
    free_ids: Words


def grant_of(tables: Tables, count: int, step: int = 1) -> Grant:
    """A take of ``count`` pages and ids: half of the pages and a third of the ids from the lists.

    The last pages of a run of more than two come from behind the band.
    """
    listed, recycled = count // 2, count // 3
    head, newer = 2, listed - listed // 2
    first_id = len(tables.free_ids) + len(tables.ids) + 1
    holes = np.concatenate([[-7] * head, tables.free_pages[:listed], [-7] * 3])
    free_ids = np.concatenate([[-7] * 4, tables.free_ids[:recycled], [-7] * 3])
    back = (count - listed) // 3
    # The run goes away from the band's own end, and its last pages the other way from there.
    first_page = len(tables.p2v) - 1 - back if step == -1 else first_id + back
    take = Take(
        count, head, newer, head + newer, listed - newer, first_page, step,
        4, recycled, first_id, first_page - step, back,
    )  # fmt: skip
    return Grant(take, holes, free_ids)

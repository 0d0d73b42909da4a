"""The calls of a lockstep script that speak in tokens, and the script itself."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .gpu_check_lockstep import ACTIONS, Action, Lockstep, place
from .gpu_check_report import Report, require
from .gpu_check_sizes import Sizes


def _alloc_tokens(pair: Lockstep, name: str) -> None:
    pool = pair.arenas[1][name]
    count = pair.draw.randint(0, pool.page_size * (pool.available() // 2 + 2))
    said, tokens = pair.both(
        f"alloc_tokens({count})", lambda arena: arena[name].alloc_tokens(count)
    )
    if said == "gave":
        pair.got(name, _pages(tokens, pool.page_size))


def _decode(pair: Lockstep, name: str) -> None:
    """One token more for sequences that end somewhere in a live page, or have none yet."""
    page_size, form = pair.arenas[1][name].page_size, pair.form()
    ends = [page_size - 1, pair.draw.randrange(page_size)]
    last = [v * page_size + pair.draw.choice(ends) for v in pair.some_live(name)]
    last += [-1] * pair.draw.randint(0, 2)
    fresh = [index for index, token in enumerate(last) if (token + 1) % page_size == 0]
    said, tokens = pair.both(
        f"decode({last})", lambda arena: arena[name].decode(place(arena, last, *form), len(fresh))
    )
    if said == "gave":
        pair.got(name, _pages([tokens[index] for index in fresh], page_size))


def _free_tokens(pair: Lockstep, name: str) -> None:
    """Some tokens of some live pages, in any order."""
    page_size, gone, form = pair.arenas[1][name].page_size, pair.some_live(name), pair.form()
    named = gone + pair.draw.choices(gone, k=len(gone)) if gone else []
    tokens = [v * page_size + pair.draw.randrange(page_size) for v in named]
    pair.draw.shuffle(tokens)
    pair.both(
        f"free_tokens({tokens})",
        lambda arena: arena[name].free_tokens(place(arena, tokens, *form), len(gone)),
    )
    _forget(pair, name, gone)


def _free_token_run(pair: Lockstep, name: str) -> None:
    page_size, gone, form = pair.arenas[1][name].page_size, pair.some_live(name), pair.form()
    tokens = [v * page_size + place for v in gone for place in range(page_size)]
    del tokens[len(tokens) - pair.draw.randrange(page_size) :]
    pair.both(
        f"free_token_run({tokens})",
        lambda arena: arena[name].free_token_run(place(arena, tokens, *form)),
    )
    _forget(pair, name, gone)


def _forget(pair: Lockstep, name: str, gone: Sequence[int]) -> None:
    pair.live[name] = [virtual for virtual in pair.live[name] if virtual not in set(gone)]


def _pages(tokens: Sequence[int], page_size: int) -> list[int]:
    return list(dict.fromkeys(token // page_size for token in tokens))


TOKEN_ACTIONS: tuple[Action, ...] = (_alloc_tokens, _decode, _free_tokens, _free_token_run)


def check_lockstep(device: torch.device, sizes: Sizes, report: Report) -> None:
    """The random script on every geometry."""
    for seed, geometry in enumerate(sizes.geometries):
        with report.check(f"lockstep: {sizes.lockstep_steps} steps on {geometry}"):
            pair = Lockstep(device, geometry, seed)
            for _ in range(sizes.lockstep_steps):
                pair.random_step(ACTIONS + TOKEN_ACTIONS)
            moves = pair.arenas[0].stats().moves
            require(moves > 0, "the script moved no page")

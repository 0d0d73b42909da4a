"""Any calls in any order where pools borrow ids, against a plain dict of bytes."""

import random
from collections import Counter

import pytest
from hypothesis.stateful import run_state_machine_as_test

from .formula import NAMES
from .lending_chains import CHAINS, RUNS
from .machine import FLUSHES, ID_FORMS
from .refusing_machine import (
    FREES,
    WRONG_BINDS,
    WRONG_COUNTS,
    WRONG_RELEASES,
    RefusingMachine,
)
from .rig import by_backend, examples

KINDS = {
    "bind", "no room", "joint", "dense", "gaps", "tokens", "cascade ids", "cascade tokens",
    "cascade run", "group", "cascaded group", "refused held", "refused bound", "refused twice",
    "refused not live", "refused range", "refused release unbound", "refused release twice",
    "refused release range", "refused count ids", "refused count tokens", "refused count cascade",
}  # fmt: skip
TENTHS = (0, 1, 1, 2, 3, 5, 10)


def machine_on(backend: str, debug: bool) -> type[RefusingMachine]:
    more = {"backend": backend, "debug": debug, "done": Counter()}
    return type("OnBackend", (RefusingMachine,), more)


@pytest.mark.parametrize("debug", [False, True])
def test_any_calls_of_pools_that_borrow(backend, debug):
    machine = machine_on(backend, debug)
    machine.most_pages = by_backend(backend, 30, 10)
    steps = by_backend(backend, 30, 10)
    run_state_machine_as_test(
        machine,
        settings=examples(backend, host=8, triton=2, stateful_step_count=steps, derandomize=True),
    )


def random_step(machine: RefusingMachine, rng: random.Random) -> None:
    name, share = rng.choice(NAMES), rng.choice(TENTHS)
    shares, coin = tuple(rng.choice(TENTHS) for _ in NAMES), rng.random() < 0.5
    form = rng.choice(sorted(ID_FORMS))
    steps = {
        "alloc": lambda: machine.alloc(name, share, rng.choice([0, 0, 0, 1]), coin),
        "free": lambda: machine.free(name, form, share, ""),
        "flush": lambda: machine.flush(name, rng.choice(FLUSHES), rng.randint(0, 6), None),
        "bind": lambda: machine.bind(name, share, rng.choice([0, 0, 0, 1, 2, 50]), form),
        "fits": lambda: machine.what_fits_is_granted(
            tuple(rng.choice([0, 1, 2, 5, 10]) for _ in NAMES)
        ),
        "release": lambda: machine.release(
            name, share, form, rng.choice(["dense", "gaps", "tokens"])
        ),
        "cascade": lambda: machine.cascade(
            name, min(share, 5), rng.choice(["ids", "tokens", "run"])
        ),
        "group": lambda: machine.group(name, shares, coin, rng.random() < 0.5),
        "held": lambda: machine.free_held(name, share, rng.choice(FREES), coin),
        "bind wrong": lambda: machine.bind_wrong(name, share, rng.choice(WRONG_BINDS)),
        "release wrong": lambda: machine.release_wrong(name, share, rng.choice(WRONG_RELEASES)),
        "count": lambda: machine.count_wrong(name, share, rng.choice(WRONG_COUNTS), coin),
        "calls": lambda: machine.more_than_are_live(name),
        "translate": lambda: machine.translate(name, "int64", -1, coin),
    }
    weights = [5, 1, 4, 8, 2, 3, 2, 3, 1.5, 3, 2, 3, 0.4, 1]
    steps[rng.choices(list(steps), weights)[0]]()


@pytest.mark.parametrize(("backend", "chain"), RUNS)
def test_long_run(backend, chain):
    """Hypothesis shrinks, but seldom goes far: a long run meets the states that take many calls."""
    done: Counter[str] = Counter()
    for debug in (False, True):
        machine, rng = machine_on(backend, debug)(), random.Random(f"{chain} {debug}")
        machine.start(CHAINS[chain], seed=1)
        for _ in range(by_backend(backend, 160, 12)):
            random_step(machine, rng)
            machine.pages_hold_their_bytes()
            machine.capacity_is_the_formula()
        assert machine.moves > by_backend(backend, 3, -1)
        done += machine.done
    missing = KINDS - done.keys()
    assert backend != "host" or len(missing) <= 3, missing

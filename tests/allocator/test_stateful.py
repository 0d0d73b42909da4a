"""Any calls in any order against a plain dict of bytes."""

import random

import pytest
from hypothesis.stateful import run_state_machine_as_test

from kvdefrag import PoolSpec

from .formula import Layout
from .machine import FLUSHES, ID_FORMS, Machine
from .rig import by_backend, examples


def machine_on(backend: str, floats: bool = False) -> type[Machine]:
    return type("OnBackend", (Machine,), {"backend": backend, "floats": floats})


@pytest.mark.parametrize("floats", [False, True])
def test_any_calls_in_any_order(backend, floats):
    machine = machine_on(backend, floats)
    machine.most_pages = by_backend(backend, 40, 14)
    steps, host, triton = by_backend(backend, 40, 15), 15 if floats else 50, 3 if floats else 12
    run_state_machine_as_test(
        machine, settings=examples(backend, host, triton, stateful_step_count=steps)
    )


def random_step(machine: Machine, rng: random.Random) -> None:
    name, share = rng.choice(["first", "second"]), rng.choice([1, 1, 2, 3, 10])
    kind = rng.choice(["alloc", "alloc", "alloc_many", "free", "free", "flush", "translate"])
    if kind == "alloc":
        machine.alloc(name, share, rng.choice([0, 0, 0, 1]), soft=rng.random() < 0.5)
    elif kind == "alloc_many":
        machine.alloc_many((share, rng.randint(0, 10)))
    elif kind == "free":
        machine.free(name, rng.choice(sorted(ID_FORMS)), share, "")
    elif kind == "flush":
        max_bytes = rng.choice([None, 40])
        machine.flush(name, rng.choice(FLUSHES), rng.randint(0, 6), max_bytes)
    else:
        form = rng.choice(["int64", "int32", "strided", "column"])
        machine.translate(name, form, -1, as_tokens=rng.random() < 0.5)
        machine.write(name)


@pytest.mark.parametrize("sizes", [(8,), (5, 3), (3, 17), (24, 7)])
@pytest.mark.parametrize("grows", [("up", "down"), ("down", "up")])
def test_long_run(backend, sizes, grows):
    """Hypothesis shrinks, but seldom goes far: a long run meets the states that take many calls."""
    specs = (
        PoolSpec(name, page_bytes, page_size=3, grows=end)
        for name, page_bytes, end in zip(("first", "second"), sizes, grows, strict=False)
    )
    machine, rng = machine_on(backend)(), random.Random(sum(sizes))
    pages = by_backend(backend, 40, 14)
    machine.start(Layout(pages * max(sizes) + 5, tuple(specs)), seed=1)
    for _ in range(by_backend(backend, 400, 25)):
        random_step(machine, rng)
        machine.pages_hold_their_bytes()
        machine.capacity_is_the_formula()
    assert machine.moves > by_backend(backend, 40, -1)

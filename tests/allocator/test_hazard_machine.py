"""Forwards in flight, leases, blocks and faults in any order, beside a model of every page."""

import random

import pytest
from hypothesis.stateful import run_state_machine_as_test

from kvdefrag import PoolSpec

from .formula import NAMES, Layout
from .hazard_machine import HazardMachine
from .lending_chains import CHAINS, RUNS
from .lending_hazards import LendingHazards
from .machine import FLUSHES
from .rig import by_backend, examples

BLOCK_STEPS = [(True,), (True, True), *[(False, False)] * 6]
"""Blocks are nested; True is one more."""


def machine_on(backend: str, kind: type[HazardMachine] = HazardMachine) -> type[HazardMachine]:
    return type("OnBackend", (kind,), {"backend": backend})


@pytest.mark.parametrize("kind", [HazardMachine, LendingHazards])
def test_any_calls_in_any_order(backend, kind):
    machine, lends = machine_on(backend, kind), kind is LendingHazards
    machine.most_pages = by_backend(backend, 40, 12)
    steps, host, triton = by_backend(backend, 50, 15), 6 if lends else 40, 2 if lends else 8
    run_state_machine_as_test(
        machine,
        settings=examples(backend, host, triton, stateful_step_count=steps, derandomize=True),
    )


def random_step(machine: HazardMachine, rng: random.Random) -> None:
    name, share = rng.choice(list(machine.world.live)), rng.choice([1, 1, 2, 3])
    index = rng.randrange(8)
    if rng.random() < 0.02:
        machine.drain(7)
    steps = {
        "alloc": lambda: machine.alloc(name, rng.choice([1, 4, 8, 10]), 0, rng.random() < 0.5),
        "alloc_many": lambda: machine.alloc_many((rng.randint(0, 8), rng.randint(0, 8))),
        "free": lambda: machine.free(name, share, "int64"),
        "flush": lambda: machine.flush(name, rng.choice(FLUSHES), rng.randint(0, 6), None),
        "begin": lambda: machine.begin(share, rng.randint(0, 2), index, rng.random() < 0.5),
        "end": lambda: machine.end(index),
        "block": lambda: [
            machine.block_or_unblock(index, more) for more in rng.choice(BLOCK_STEPS)
        ],
        "lease": lambda: machine.lease(name, 1),
        "release": lambda: machine.release(name, index),
        "refused": lambda: machine.free_refused(name, share, "double"),
        "break": lambda: machine.break_and_repair(name, index, rng.choice(["free", "deep"])),
    }
    steps[rng.choices(list(steps), [5, 1, 5, 7, 4, 3, 0.5, 0.4, 2, 0.3, 0.3])[0]]()


@pytest.mark.parametrize("sizes", [(8,), (5, 3), (3, 17), (24, 7)])
@pytest.mark.parametrize("grows", [("up", "down"), ("down", "up")])
def test_long_run(backend, sizes, grows):
    specs = (
        PoolSpec(name, page_bytes, page_size=3, grows=end)
        for name, page_bytes, end in zip(("first", "second"), sizes, grows, strict=False)
    )
    machine, rng = machine_on(backend)(), random.Random(sum(sizes))
    pages = by_backend(backend, 40, 12)
    machine.start(Layout(pages * max(sizes) + 5, tuple(specs)), seed=1)
    for _ in range(by_backend(backend, 800, 20)):
        random_step(machine, rng)
        machine.all_is_well()
    machine.world.drain()
    assert machine.world.counts["moves under forwards"] > by_backend(backend, 4, -1)


def lending_step(machine: LendingHazards, rng: random.Random) -> None:
    name, share = rng.choice(NAMES), rng.choice([0, 1, 1, 2, 3])
    shares = tuple(rng.choice([0, 1, 2, 4]) for _ in NAMES)
    steps = {
        "any": lambda: random_step(machine, rng),
        "bind": lambda: machine.bind(name, rng.choice([1, 4, 8, 10]), rng.choice([0, 0, 1])),
        "retire": lambda: machine.retire(name, share, rng.random() < 0.5),
        "free": lambda: machine.free_all(name, share, rng.random() < 0.5),
        "fits": lambda: machine.what_fits_is_granted(shares),
        "held": lambda: machine.free_held(name, share),
    }
    steps[rng.choices(list(steps), [12, 4, 2, 3, 1, 0.4])[0]]()


@pytest.mark.parametrize(("backend", "chain"), RUNS)
def test_long_run_of_pools_that_borrow(backend, chain):
    machine, rng = machine_on(backend, LendingHazards)(), random.Random(chain)
    machine.start(CHAINS[chain], seed=1)
    for _ in range(by_backend(backend, 120, 8)):
        lending_step(machine, rng)
        machine.all_is_well()
    machine.world.drain()
    counts = machine.world.counts
    if backend == "host":
        assert min(counts[kind] for kind in ("bind", "retire", "cascaded", "moves")) > 0

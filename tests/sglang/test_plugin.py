"""Faults, the commit on its own, Triton's kernels, and what is left to SGLang."""

import warnings
from types import SimpleNamespace

import pytest
import torch
from sglang.test.unified_allocator_fixtures import FakeKVCache, build_swa_pool

from kvdefrag import CorruptState
from kvdefrag.allocator import sglang_flush, sglang_plugin
from kvdefrag.allocator.plan import MovePlan, plan_moves

from .scripts import Script
from .test_differential import run_script
from .worlds import LAYOUTS, STOCK, WITH_PLUGIN, Event, Pair, World, differences

FULL, SWA = "full_attn_allocator", "swa_attn_allocator"


def crowded(methods: dict = WITH_PLUGIN, page_size: int = 4) -> World:
    """Thirty pages, every third of them freed."""
    world = World("two pools", page_size, methods)
    tokens = world.run(lambda world: world.composite.alloc(30 * page_size)).view(30, page_size)
    world.run(lambda world: world.composite.free(tokens[::3].reshape(-1)))
    return world


def run_scripts(layout: str, page_size: int, count: int) -> int:
    return sum(run_script(layout, page_size, seed) for seed in range(count))


def swapped(plan: MovePlan) -> MovePlan:
    return plan._replace(targets=plan.targets[::-1])


def shortened(plan: MovePlan) -> MovePlan:
    return plan._replace(sources=plan.sources[:-1], targets=plan.targets[:-1])


def reordered(plan: MovePlan) -> MovePlan:
    return plan._replace(sources=plan.sources[::-1])


@pytest.mark.parametrize("spoil", [swapped, shortened, reordered])
def test_a_fault_in_the_plan_shows(spoil, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoiled(*arguments, **options) -> MovePlan:
        plan = plan_moves(*arguments, **options)
        return spoil(plan) if plan.sources.size > 1 else plan

    monkeypatch.setattr(sglang_flush, "plan_moves", spoiled)
    with pytest.raises(AssertionError):
        run_scripts("two pools", 4, 10)


def test_scripts_move_pages() -> None:
    for layout in LAYOUTS:
        assert run_scripts(layout, 1, 3) > 20


@pytest.mark.parametrize("urgent", [True, False])
def test_corrupt_tables_move_nothing_and_stop_the_pool(urgent: bool) -> None:
    world = crowded()
    member = world.ends[FULL]
    bound = member.physical_to_virtual.gt(0).nonzero().flatten().tolist()
    topmost = bound[0] if member.grow_direction == "down" else bound[-1]
    virtual = int(member.physical_to_virtual[topmost])
    member.virtual_to_physical[virtual] = topmost - 1
    before, epoch = world.bytes.clone(), member.watermark_physical
    for _ in range(2):
        with pytest.raises(CorruptState, match="'full': v2p and p2v disagree: virtual id"):
            world.run(lambda world: member._flush(urgent=urgent))
    assert torch.equal(world.bytes, before)
    assert member.watermark_physical == epoch
    with pytest.raises(CorruptState):
        world.run(lambda world: world.composite.set_inflight_forward(Event(0), torch.tensor([8])))


@pytest.mark.parametrize("listed", [[0, 0, 1, 2], [0, -1]])
def test_a_hole_list_with_a_page_twice_or_too_many_is_refused(listed: list[int]) -> None:
    """A page that was freed twice is -1 in SGLang's list."""
    world = crowded()
    member = world.ends[FULL]
    holes = torch.cat([member._free_phys_pages, torch.tensor([-1])])
    member._free_phys_pages = holes[listed]
    before = world.bytes.clone()
    with pytest.raises(CorruptState, match="in the hole list"):
        world.run(lambda world: member._flush(urgent=True))
    assert torch.equal(world.bytes, before)


@pytest.mark.parametrize("done", [True, False, None])
def test_commit_alone(done: bool | None) -> None:
    """SGLang's own walk with our commit."""
    mixed = {**STOCK, "_commit_move_batch": WITH_PLUGIN["_commit_move_batch"]}
    states = []
    for methods in (STOCK, mixed):
        world = crowded(methods)
        if done is not None:
            event = world.events[0] = Event(0)
            event.done = done
            world.run(
                lambda world, event=event: world.composite.set_latest_forward_done_event(event)
            )
        moves = [
            world.run(lambda world, name=name: world.ends[name]._flush(urgent=False))
            for name in (FULL, SWA)
        ]
        assert min(moves) > 3
        states.append(world.state())
    assert differences(*states) == []


@pytest.mark.parametrize("layout", LAYOUTS)
def test_triton_kernels(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the interpreter: the kernels that run on a GPU, on SGLang's tables and bytes."""
    monkeypatch.setattr(sglang_plugin, "BACKEND", "triton")
    pair = Pair(layout, 4)
    script = Script(pair, 4, seed=5)
    script.fill()
    for _ in range(3):
        script.alloc()
        script.take_slots()
        script.launch()
        script.free()
        script.free_slots()
        pair(lambda world: [member._flush(urgent=False) for member in world.ends.values()])
        pair(lambda world: [member._flush(urgent=True) for member in world.ends.values()])
    moved = [member._stats_n_flush_moves for member in pair.plugged.ends.values()]
    assert min(moved) > 0
    pools = [member._kvdefrag_pool for member in pair.plugged.ends.values()]
    assert {pool.backend.name for pool in pools} == {"triton"}
    before = pair.plugged.state()["bytes"].clone()
    for pool in pools:
        pool.prewarm()
        assert pool.backend.device_to_host_copies >= 1
    pair(lambda world: None)
    assert torch.equal(pair.plugged.bytes, before)


@pytest.mark.parametrize("urgent", [True, False])
def test_copies_and_launches_of_a_flush(urgent: bool) -> None:
    world = crowded()
    member = world.ends[FULL]
    pool = sglang_plugin._pool_of(member)

    def flush() -> list[int]:
        backend = pool.backend
        backend.launches = backend.device_to_host_copies = backend.host_to_device_copies = 0
        world.run(lambda world: member._flush(urgent=urgent))
        return [backend.launches, backend.device_to_host_copies, backend.host_to_device_copies]

    # The snapshot; validate, copy and rebind.
    assert flush() == [3, 1, 1]
    world.run(lambda world: member._flush(urgent=True))
    assert flush() == [0, 0, 0]


def test_a_copy_of_the_engines_own_is_called() -> None:
    worlds = [crowded(methods) for methods in (STOCK, WITH_PLUGIN)]
    for world in worlds:
        member = world.ends[FULL]
        member._kvcache = FakeKVCache(member.max_slots)
        member._kvcache.buf[:] = torch.arange(member.max_slots)
        world.run(lambda world, member=member: member._flush(urgent=True))
    left, right = (world.ends[FULL]._kvcache.buf for world in worlds)
    assert torch.equal(left, right)
    assert not torch.equal(left, torch.arange(len(left)))


@pytest.mark.parametrize("urgent", [True, False])
def test_eager_and_floating_pools_stay_with_sglang(urgent: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        eager = build_swa_pool(lazy=False).full_attn_allocator
    assert eager._flush(urgent=urgent) == 0
    assert eager._kvdefrag_pool is None
    world = World("three pools", 1, WITH_PLUGIN)
    floating = world.members[SWA]
    world.run(lambda world: floating._flush(urgent=urgent))
    world.run(lambda world: world.composite.set_inflight_forward(Event(0), torch.tensor([1])))
    assert floating._kvdefrag_pool is None


def test_a_pool_that_cannot_be_served_stays_with_sglang(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(
        sglang_plugin, "_envelopes", lambda kv: SimpleNamespace(buffer=None, page_bytes=0)
    )

    def refuse(*arguments) -> None:
        raise ValueError("pages too large")

    monkeypatch.setattr(sglang_plugin, "EnginePool", refuse)
    world = crowded()
    assert world.run(lambda world: world.ends[FULL]._flush(urgent=True)) > 0
    assert "kvdefrag leaves pool 'full' to SGLang: pages too large" in caplog.text


def test_a_resized_pool_is_taken_up_anew() -> None:
    def use(member, slots: int) -> int:
        member._set_capacity(slots)
        tokens = member.alloc(20 * 4)
        member.free(tokens.view(20, 4)[::2].reshape(-1))
        return member._flush(urgent=True)

    worlds = [World("two pools", 4, methods) for methods in (STOCK, WITH_PLUGIN)]
    for world in worlds:
        member = world.ends[FULL]
        slots = member.max_slots
        for size in (slots - 40, slots):
            assert world.run(lambda world, member=member, size=size: use(member, size)) > 0
    assert differences(worlds[0].state(), worlds[1].state()) == []

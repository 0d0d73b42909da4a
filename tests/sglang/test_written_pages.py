"""The one difference: a page freed while the running forward will still write it."""

import pytest
import torch

from .worlds import STOCK, WITH_PLUGIN, Event, World

FULL = "full_attn_allocator"


class Scene:
    """Ten live pages, own end first; the ``written``-th is freed under a forward that writes it."""

    def __init__(self, methods: dict, written: int, page_size: int = 4) -> None:
        self.world = World("two pools", page_size, methods)
        self.member = self.world.members[FULL]
        tokens = self.world.run(lambda world: world.composite.alloc(10 * page_size))
        pages = (tokens[::page_size] // page_size).tolist()
        grows_down = self.member.grow_direction == "down"
        self.pages = sorted(
            pages, key=lambda page: self.world.physical(FULL, [page]), reverse=grows_down
        )
        self.page_size = page_size
        places = self.world.physical(FULL, self.pages)
        for page, place in zip(self.pages, places, strict=True):
            self.world.write(FULL, [place], seed=page)
        self.place = places[written]
        self.event = Event(0, lambda: self.world.write(FULL, [self.place], seed=999))
        self.world.run(self.launch(self.pages[written]))
        self.free(self.pages.pop(written))

    def launch(self, page: int):
        def call(world: World) -> None:
            world.composite.set_latest_forward_done_event(self.event)
            world.composite.set_inflight_forward(
                self.event, torch.tensor([(page + 1) * self.page_size - 1])
            )

        return call

    def free(self, page: int) -> None:
        tokens = torch.arange(page * self.page_size, (page + 1) * self.page_size)
        self.world.run(lambda world: world.composite.free(tokens))

    def idle(self) -> int:
        return self.world.run(lambda world: self.member._flush(urgent=False))

    def lost(self) -> list[int]:
        """Live pages that do not read as they were written."""
        found = []
        for page, place in zip(self.pages, self.world.physical(FULL, self.pages), strict=True):
            before = self.world.envelope(FULL, place).clone()
            self.world.write(FULL, [place], seed=page)
            if not torch.equal(before, self.world.envelope(FULL, place)):
                found.append(page)
        return found


@pytest.mark.parametrize("page_size", [1, 4])
def test_stock_moves_into_the_written_page_and_loses_bytes(page_size: int) -> None:
    scene = Scene(STOCK, written=2, page_size=page_size)
    topmost = scene.pages[-1]
    assert scene.idle() == 1
    assert scene.world.physical(FULL, [topmost]) == [scene.place]
    scene.event.fire()
    assert scene.lost() == [topmost]


@pytest.mark.parametrize("page_size", [1, 4])
def test_plugin_passes_it_over(page_size: int) -> None:
    scene = Scene(WITH_PLUGIN, written=2, page_size=page_size)
    assert scene.idle() == 0
    assert scene.member._free_phys_pages.tolist() == [scene.place]
    scene.event.fire()
    assert scene.lost() == []
    # The forward is done: now the page is a hole like any other.
    assert scene.idle() == 1
    assert scene.lost() == []


def test_other_holes_are_used_and_the_list_stays_sorted() -> None:
    scene = Scene(WITH_PLUGIN, written=2)
    places = scene.world.physical(FULL, [scene.pages[0], scene.pages[4]])
    scene.free(scene.pages.pop(4))
    scene.free(scene.pages.pop(0))
    topmost = scene.world.physical(FULL, scene.pages[-1:] + scene.pages[-2:-1])
    assert scene.idle() == 2
    assert sorted(scene.world.physical(FULL, [scene.pages[-1], scene.pages[-2]])) == sorted(places)
    assert scene.member._free_phys_pages.tolist() == [scene.place]
    assert scene.member._pending_reuse_pages_cpu == set(topmost)
    scene.event.fire()
    assert scene.lost() == []


def test_a_written_page_at_the_frontier_is_given_back_as_by_stock() -> None:
    scenes = [Scene(methods, written=9) for methods in (STOCK, WITH_PLUGIN)]
    frontiers = []
    for scene in scenes:
        assert scene.idle() == 0
        assert scene.member._free_phys_pages.numel() == 0
        frontiers.append(scene.member.watermark_physical)
    assert frontiers[0] == frontiers[1]


def test_urgent_waits_for_the_forward_and_uses_the_page() -> None:
    scene = Scene(WITH_PLUGIN, written=2)
    assert scene.world.run(lambda world: scene.member.flush_for_allocation()) == 1
    assert scene.world.stream.waits == [0]
    assert scene.lost() == []


def test_a_launch_that_the_plugin_did_not_see_is_taken_as_by_stock() -> None:
    scene = Scene(STOCK, written=2)
    scene.world.methods = WITH_PLUGIN
    assert scene.idle() == 1

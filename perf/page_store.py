"""The engine's page tables: which virtual pages hold which content, written and compared.

Everything that touches device ids is here; the policy in `engine` sees nodes, slots and counts.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from .arena_face import ArenaFace, SharingPoolFace
from .content_keys import Integers, Keys, block_keys, private_keys, state_keys
from .geometries import PoolLayout
from .id_table import IdTable
from .page_stamps import PageStamps, Verdict
from .prefix_cache import Node
from .running_batch import Leaving
from .timed_arena import TimedArena
from .window_pages import WindowPages

FULL = "full"
"""Name of the pool of token pages."""
STATE = "state"
"""Name of the pool of state slots, one a page."""
WINDOW = "window"
"""Name of the pool of pages that are near enough, whose ids are those of the full pool."""
FILLING_STEPS = 16
"""Decode steps whose new pages are stamped together, fewer if the window passes them before."""


class PageStore:
    """Pages of cached blocks and of running requests, each stamped with its content.

    `window` has the second pages of a sliding window, None where the geometry has none. The
    checkpoint of a cached node is a state, or the window of tokens that end with its block, or
    both.

    Tables of virtual ids, int64 on the arena's device: `[rows, block_pages]` for cached blocks and
    `[rows]` for their states, by `Node.row`; `[running, private_pages]` for private pages and
    `[running]` for working states, by slot of the running batch. The host knows every length, so
    no table is ever read back.
    """

    def __init__(
        self,
        arena: ArenaFace,
        layout: PoolLayout,
        running: int,
        private_pages: int,
        verify: str,
        seed: int,
    ) -> None:
        device = arena.device
        self.timed = TimedArena(arena)
        self.rows = layout.num_pages // layout.block_pages
        self.verdict = Verdict()
        self._layout = layout
        self._pages = PageStamps(FULL, arena[FULL], self.verdict, verify, seed)
        self._states: PageStamps | None = None
        if layout.state_bytes:
            self._states = PageStamps(STATE, arena[STATE], self.verdict, verify, seed)
        self.window: WindowPages | None = None
        if layout.window_tokens:
            owner, window = arena[FULL], arena[WINDOW]
            assert isinstance(owner, SharingPoolFace)
            assert isinstance(window, SharingPoolFace)
            stamps = PageStamps(WINDOW, window, self.verdict, verify, seed)
            self.window = WindowPages(self.timed, owner, window, stamps)
        self._block_table = IdTable(self.rows, layout.block_pages, device)
        self._state_table = IdTable(self.rows, 1, device)
        self._private_table = IdTable(running, private_pages, device)
        self._working_table = IdTable(running, 1, device)
        self._filling: list[tuple[torch.Tensor, Keys]] = []

    @property
    def pool_names(self) -> tuple[str, ...]:
        """The pools that this geometry has."""
        return (FULL, *self.checkpoint_pages)

    @property
    def checkpoint_pages(self) -> dict[str, int]:
        """What one checkpoint takes: pages by pool name, empty where a prefix needs none."""
        pages = {}
        if self.window is not None:
            pages[WINDOW] = self._layout.window_block_pages
        if self._states is not None:
            pages[STATE] = 1
        return pages

    def fits(self, page_counts: Mapping[str, int]) -> bool:
        """Ask whether these pages would be granted now, the window's for ids asked for as well."""
        return self.timed.arena.fits(page_counts)

    def alloc_many(self, page_counts: Mapping[str, int]) -> dict[str, torch.Tensor]:
        """Allocate what one admission needs of the pools that have ids of their own."""
        counts = {pool: pages for pool, pages in page_counts.items() if pool != WINDOW}
        return self.timed.alloc_many(counts)

    def write_pages(
        self, chain: Sequence[Node], slot: int, serial: int, virtual_ids: torch.Tensor
    ) -> None:
        """Bind and stamp the token pages of one admission.

        The first `block_pages` ids a node go to `chain`, the rest are the first private pages of
        the request in `slot`.
        """
        block_count = len(chain) * self._layout.block_pages
        keys = private_keys(serial, 0, virtual_ids.shape[0] - block_count)
        if chain:
            self._block_table.put(_rows(chain), virtual_ids[:block_count])
            keys = np.concatenate((self._block_keys(chain), keys))
        self._private_table.put_first(slot, virtual_ids[block_count:])
        self._pages.write(virtual_ids, keys)

    def write_states(
        self, nodes: Sequence[Node], slot: int, serial: int, virtual_ids: torch.Tensor
    ) -> None:
        """Bind and stamp the state slots of one admission.

        The first id is the working state of the request in `slot`, the others are checkpoints of
        `nodes`, stamped with their `checkpoint`.
        """
        if self._states is None:
            return
        self._working_table.put_first(slot, virtual_ids[:1])
        if nodes:
            self._state_table.put(_rows(nodes), virtual_ids[1:])
        self._states.write(virtual_ids, state_keys([serial, *(n.checkpoint for n in nodes)]))

    def write_window(
        self, nodes: Sequence[Node], slot: int, serial: int, first: int, page_count: int
    ) -> None:
        """Bind and stamp the window's pages of one admission, whose ids are in the tables.

        Those at the ends of `nodes`, which become checkpoints, and the private pages from `first`
        to before `page_count` of the request in `slot`.
        """
        if self.window is None:
            return
        virtual_ids = self._private_table.between(slot, first, page_count)
        keys = private_keys(serial, first, page_count - first)
        if nodes:
            virtual_ids = torch.cat((self._block_ends(nodes), virtual_ids))
            keys = np.concatenate((self._block_end_keys(nodes), keys))
        self.window.bind(virtual_ids)
        self.window.write(virtual_ids, keys)

    def leave_window(self, slots: Integers, leaving: Leaving) -> None:
        """Compare and release the pages of `slots` that the window has passed, in one call.

        Slots whose window has passed none leave gaps in the list.
        """
        page_count = int(np.count_nonzero(leaving.leaves))
        if self.window is None or not page_count:
            return
        virtual_ids = self._private_table.take_cells(slots, np.maximum(leaving.positions, 0))
        passed, keys = virtual_ids, leaving.keys
        if page_count < len(slots):
            rows = torch.from_numpy(np.flatnonzero(leaving.leaves)).to(virtual_ids.device)
            passed, keys = virtual_ids[rows], keys[leaving.leaves]
            gaps = torch.from_numpy(leaving.positions < 0).to(virtual_ids.device)
            virtual_ids = virtual_ids.masked_fill(gaps, -1)
        self.window.compare(passed, keys, "before it leaves the window")
        self.window.release(virtual_ids, page_count)

    def grow(self, slots: Integers, positions: Integers, keys: Keys) -> bool:
        """Allocate one more private page for each of `slots`; all are `[n]`.

        `positions` are the new pages' places among the private pages of their request. As tokens
        fill a page over several decode steps, it is stamped some steps later, in one go with
        others. False, with nothing changed, if the pages do not fit.
        """
        if self.window is not None and not self.fits({FULL: len(slots), WINDOW: len(slots)}):
            return False
        virtual_ids = self.timed.try_alloc(FULL, len(slots))
        if virtual_ids is None:
            return False
        self._private_table.put_cells(slots, positions, virtual_ids)
        self._filling.append((virtual_ids, keys))
        steps = FILLING_STEPS
        if self.window is not None:
            self.window.bind(virtual_ids)
            steps = min(steps, self._layout.window_block_pages)
        if len(self._filling) >= steps:
            self._stamp_filling()
        return True

    def _stamp_filling(self) -> None:
        """Stamp the pages that have been growing since the last time."""
        if self._filling:
            virtual_ids, keys = zip(*self._filling, strict=True)
            ids_of_all, keys_of_all = torch.cat(virtual_ids), np.concatenate(keys)
            self._pages.write(ids_of_all, keys_of_all)
            if self.window is not None:
                self.window.write(ids_of_all, keys_of_all)
            self._filling.clear()

    def compare(self, nodes: Sequence[Node], holders: Sequence[Node], moment: str) -> None:
        """Compare the pages of `nodes` and the checkpoints of `holders` with their content."""
        if nodes:
            self._pages.compare(self._block_ids(nodes), self._block_keys(nodes), moment)
        if holders and self._states is not None:
            self._states.compare(self._state_ids(holders), self._state_keys(holders), moment)
        if holders and self.window is not None:
            ends = self._block_ends(holders)
            self.window.compare(ends, self._block_end_keys(holders), moment)

    def evict(self, chain: Sequence[Node]) -> None:
        """Compare and free the pages of `chain` and the checkpoints that its nodes have."""
        holders = [node for node in chain if node.checkpoint]
        self.compare(chain, holders, "before eviction")
        self._free(self._block_ids(chain), len(holders) * self._layout.window_block_pages)
        if holders and self._states is not None:
            self.timed.free(STATE, self._state_ids(holders))

    def release(self, slot: int, serial: int, page_count: int, window_first: int) -> None:
        """Compare and free the private pages and the working state of the request in `slot`.

        Its private pages from `window_first` on have a page in the window, if there is one.
        """
        self._stamp_filling()
        if page_count:
            virtual_ids = self._private_table.first(slot, page_count)
            keys = private_keys(serial, 0, page_count)
            self._pages.compare(virtual_ids, keys, "before release")
            if self.window is not None:
                near = slice(window_first, None)
                self.window.compare(virtual_ids[near], keys[near], "before release")
            self._free(virtual_ids, page_count - window_first)
        if self._states is not None:
            virtual_ids = self._working_table.first(slot, 1)
            self._states.compare(virtual_ids, state_keys([serial]), "before release")
            self.timed.free(STATE, virtual_ids)

    def _free(self, virtual_ids: torch.Tensor, window_pages: int) -> None:
        """Free ids of the full pool, `window_pages` of which have a page in the window."""
        if self.window is not None and window_pages:
            self.window.free(virtual_ids, window_pages)
        else:
            self.timed.free(FULL, virtual_ids)

    def _block_ids(self, nodes: Sequence[Node]) -> torch.Tensor:
        return self._block_table.take(_rows(nodes))

    def _block_keys(self, nodes: Sequence[Node]) -> Keys:
        return block_keys([node.block_hash for node in nodes], self._layout.block_pages)

    def _block_ends(self, nodes: Sequence[Node]) -> torch.Tensor:
        """The ids of the pages of each node that the window behind it reaches."""
        ids = self._block_ids(nodes).view(len(nodes), -1)
        return ids[:, -self._layout.window_block_pages :].reshape(-1)

    def _block_end_keys(self, nodes: Sequence[Node]) -> Keys:
        keys = self._block_keys(nodes).reshape(len(nodes), -1)
        return keys[:, -self._layout.window_block_pages :].reshape(-1)

    def _state_ids(self, nodes: Sequence[Node]) -> torch.Tensor:
        return self._state_table.take(_rows(nodes))

    @staticmethod
    def _state_keys(nodes: Sequence[Node]) -> Keys:
        return state_keys([node.checkpoint for node in nodes])


def _rows(nodes: Sequence[Node]) -> list[int]:
    return [node.row for node in nodes]

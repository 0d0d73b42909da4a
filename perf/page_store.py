"""The engine's page tables: which virtual pages hold which content, written and compared.

Everything that touches device ids is here; the policy in `engine` sees nodes, slots and counts.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from .arena_face import ArenaFace
from .content_keys import Integers, Keys, block_keys, private_keys, state_keys
from .geometries import PoolLayout
from .id_table import IdTable
from .page_stamps import PageStamps, Verdict
from .prefix_cache import Node
from .timed_arena import TimedArena

FULL = "full"
"""Name of the pool of token pages."""
STATE = "state"
"""Name of the pool of state slots, one a page."""
FILLING_STEPS = 16
"""Decode steps whose new pages are stamped together."""


class PageStore:
    """Pages of cached blocks and of running requests, each stamped with its content.

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
        self._block_pages = layout.block_pages
        self._pages = PageStamps(FULL, arena[FULL], self.verdict, verify, seed)
        self._states: PageStamps | None = None
        if layout.state_bytes:
            self._states = PageStamps(STATE, arena[STATE], self.verdict, verify, seed)
        self._block_table = IdTable(self.rows, layout.block_pages, device)
        self._state_table = IdTable(self.rows, 1, device)
        self._private_table = IdTable(running, private_pages, device)
        self._working_table = IdTable(running, 1, device)
        self._filling: list[tuple[torch.Tensor, Keys]] = []

    @property
    def pool_names(self) -> tuple[str, ...]:
        """The pools that this geometry has."""
        return (FULL, STATE) if self.has_states else (FULL,)

    @property
    def has_states(self) -> bool:
        """Whether the geometry has recurrent states."""
        return self._states is not None

    def fits(self, page_counts: Mapping[str, int]) -> bool:
        """Ask whether `alloc_many` would grant these pages now."""
        return self.timed.arena.fits(page_counts)

    def alloc_many(self, page_counts: Mapping[str, int]) -> dict[str, torch.Tensor]:
        """Allocate what one admission needs."""
        return self.timed.alloc_many(page_counts)

    def write_pages(
        self, chain: Sequence[Node], slot: int, serial: int, virtual_ids: torch.Tensor
    ) -> None:
        """Bind and stamp the token pages of one admission.

        The first `block_pages` ids a node go to `chain`, the rest are the first private pages of
        the request in `slot`.
        """
        block_count = len(chain) * self._block_pages
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
        `nodes`, stamped with their `state_serial`.
        """
        if self._states is None:
            return
        self._working_table.put_first(slot, virtual_ids[:1])
        if nodes:
            self._state_table.put(_rows(nodes), virtual_ids[1:])
        self._states.write(virtual_ids, state_keys([serial, *(n.state_serial for n in nodes)]))

    def grow(self, slots: Integers, positions: Integers, keys: Keys) -> bool:
        """Allocate one more private page for each of `slots`; all are `[n]`.

        `positions` are the new pages' places among the private pages of their request. As tokens
        fill a page over several decode steps, it is stamped some steps later, in one go with
        others. False, with nothing changed, if the pages do not fit.
        """
        virtual_ids = self.timed.try_alloc(FULL, len(slots))
        if virtual_ids is None:
            return False
        self._private_table.put_cells(slots, positions, virtual_ids)
        self._filling.append((virtual_ids, keys))
        if len(self._filling) == FILLING_STEPS:
            self._stamp_filling()
        return True

    def _stamp_filling(self) -> None:
        """Stamp the pages that have been growing since the last time."""
        if self._filling:
            virtual_ids, keys = zip(*self._filling, strict=True)
            self._pages.write(torch.cat(virtual_ids), np.concatenate(keys))
            self._filling.clear()

    def compare(self, nodes: Sequence[Node], state_nodes: Sequence[Node], moment: str) -> None:
        """Compare the pages of `nodes` and the states of `state_nodes` with their content."""
        if nodes:
            self._pages.compare(self._block_ids(nodes), self._block_keys(nodes), moment)
        if state_nodes and self._states is not None:
            self._states.compare(
                self._state_ids(state_nodes), self._state_keys(state_nodes), moment
            )

    def evict(self, chain: Sequence[Node]) -> None:
        """Compare and free the pages of `chain` and the states that its nodes have."""
        virtual_ids = self._block_ids(chain)
        self._pages.compare(virtual_ids, self._block_keys(chain), "before eviction")
        self.timed.free(FULL, virtual_ids)
        holders = [node for node in chain if node.state_serial]
        if holders and self._states is not None:
            virtual_ids = self._state_ids(holders)
            self._states.compare(virtual_ids, self._state_keys(holders), "before eviction")
            self.timed.free(STATE, virtual_ids)

    def release(self, slot: int, serial: int, page_count: int) -> None:
        """Compare and free the private pages and the working state of the request in `slot`."""
        self._stamp_filling()
        if page_count:
            virtual_ids = self._private_table.first(slot, page_count)
            keys = private_keys(serial, 0, page_count)
            self._pages.compare(virtual_ids, keys, "before release")
            self.timed.free(FULL, virtual_ids)
        if self._states is not None:
            virtual_ids = self._working_table.first(slot, 1)
            self._states.compare(virtual_ids, state_keys([serial]), "before release")
            self.timed.free(STATE, virtual_ids)

    def _block_ids(self, nodes: Sequence[Node]) -> torch.Tensor:
        return self._block_table.take(_rows(nodes))

    def _block_keys(self, nodes: Sequence[Node]) -> Keys:
        return block_keys([node.block_hash for node in nodes], self._block_pages)

    def _state_ids(self, nodes: Sequence[Node]) -> torch.Tensor:
        return self._state_table.take(_rows(nodes))

    @staticmethod
    def _state_keys(nodes: Sequence[Node]) -> Keys:
        return state_keys([node.state_serial for node in nodes])


def _rows(nodes: Sequence[Node]) -> list[int]:
    return [node.row for node in nodes]

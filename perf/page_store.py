"""The engine's page tables: which virtual pages hold which content, written and compared.

Everything that touches device ids is here; the policy in `replay` sees nodes, slots and counts.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from kvdefrag import Arena

from .content_keys import Keys, block_keys, private_keys, state_keys
from .geometries import PoolLayout
from .page_stamps import PageStamps, Verdict
from .prefix_cache import Node
from .timed_arena import TimedArena

FULL = "full"
"""Name of the pool of token pages."""
STATE = "state"
"""Name of the pool of state slots, one a page."""


class PageStore:
    """Pages of cached blocks and of running requests, each stamped with its content.

    Tables of virtual ids, int64 on the arena's device: `[rows, block_pages]` for cached blocks and
    `[rows]` for their states, by `Node.row`; `[running, private_pages]` for private pages and
    `[running]` for working states, by slot of the running batch. The host knows every length, so
    no table is ever read back.
    """

    def __init__(
        self,
        arena: Arena,
        layout: PoolLayout,
        running: int,
        private_pages: int,
        verify: str,
        seed: int,
    ) -> None:
        device = arena.buffer.device
        self.timed = TimedArena(arena)
        self.rows = layout.num_pages // layout.block_pages
        self.verdict = Verdict()
        self._block_pages = layout.block_pages
        self._pages = PageStamps(FULL, arena[FULL], self.verdict, verify, seed)
        self._states: PageStamps | None = None
        if layout.state_bytes:
            self._states = PageStamps(STATE, arena[STATE], self.verdict, verify, seed)
        self._block_table = torch.zeros(
            (self.rows, layout.block_pages), dtype=torch.int64, device=device
        )
        self._state_table = torch.zeros(self.rows, dtype=torch.int64, device=device)
        self._private_table = torch.zeros((running, private_pages), dtype=torch.int64, device=device)
        self._working_table = torch.zeros(running, dtype=torch.int64, device=device)

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

    def write_blocks(self, nodes: Sequence[Node], virtual_ids: torch.Tensor) -> None:
        """Bind the pages `virtual_ids`, `block_pages` a node in order, and stamp them."""
        if nodes:
            self._block_table[self._rows(nodes)] = virtual_ids.view(-1, self._block_pages)
            self._pages.write(virtual_ids, self._block_keys(nodes))

    def write_states(self, nodes: Sequence[Node], virtual_ids: torch.Tensor) -> None:
        """Bind one state slot a node, and stamp it with the node's `state_serial`."""
        if nodes:
            assert self._states is not None
            self._state_table[self._rows(nodes)] = virtual_ids
            self._states.write(virtual_ids, state_keys([node.state_serial for node in nodes]))

    def write_private(self, slot: int, serial: int, virtual_ids: torch.Tensor) -> None:
        """Bind the first private pages of the request in `slot`, and stamp them."""
        page_count = virtual_ids.shape[0]
        self._private_table[slot, :page_count] = virtual_ids
        self._pages.write(virtual_ids, self._private_keys(serial, page_count))

    def write_working_state(self, slot: int, serial: int, virtual_ids: torch.Tensor) -> None:
        """Bind the working state slot (`[1]`) of the request in `slot`, and stamp it."""
        if self._states is not None:
            self._working_table[slot : slot + 1] = virtual_ids
            self._states.write(virtual_ids, state_keys([serial]))

    def grow(self, slots: NDArray[np.int64], serials: Keys, positions: NDArray[np.int64]) -> None:
        """Allocate one more private page for each of `slots`, and stamp them; all are `[n]`."""
        virtual_ids = self.timed.alloc(FULL, len(slots))
        cells = torch.from_numpy(slots * self._private_table.shape[1] + positions)
        cells = cells.to(self._private_table.device)
        self._private_table.view(-1).index_copy_(0, cells, virtual_ids)
        self._pages.write(virtual_ids, private_keys(serials, positions))

    def compare(self, nodes: Sequence[Node], state_nodes: Sequence[Node], moment: str) -> None:
        """Compare the pages of `nodes` and the states of `state_nodes` with their content."""
        if nodes:
            self._pages.compare(self._block_ids(nodes), self._block_keys(nodes), moment)
        if state_nodes:
            assert self._states is not None
            virtual_ids = self._state_table[self._rows(state_nodes)]
            keys = state_keys([node.state_serial for node in state_nodes])
            self._states.compare(virtual_ids, keys, moment)

    def evict(self, chain: Sequence[Node]) -> None:
        """Compare and free the pages of `chain` and the state of its first node, if any."""
        holders = [node for node in chain if node.state_serial]
        self.compare(chain, holders, "before eviction")
        self.timed.free(FULL, self._block_ids(chain))
        if holders:
            self.timed.free(STATE, self._state_table[self._rows(holders)])

    def release(self, slot: int, serial: int, page_count: int) -> None:
        """Compare and free the private pages and the working state of the request in `slot`."""
        if page_count:
            virtual_ids = self._private_table[slot, :page_count]
            keys = self._private_keys(serial, page_count)
            self._pages.compare(virtual_ids, keys, "before release")
            self.timed.free(FULL, virtual_ids)
        if self._states is not None:
            virtual_ids = self._working_table[slot : slot + 1]
            self._states.compare(virtual_ids, state_keys([serial]), "before release")
            self.timed.free(STATE, virtual_ids)

    def _rows(self, nodes: Sequence[Node]) -> torch.Tensor:
        return torch.tensor([node.row for node in nodes], device=self._block_table.device)

    def _block_ids(self, nodes: Sequence[Node]) -> torch.Tensor:
        return self._block_table.index_select(0, self._rows(nodes)).view(-1)

    def _block_keys(self, nodes: Sequence[Node]) -> Keys:
        return block_keys([node.block_hash for node in nodes], self._block_pages)

    @staticmethod
    def _private_keys(serial: int, page_count: int) -> Keys:
        serials = np.full(page_count, serial, dtype=np.uint64)
        return private_keys(serials, np.arange(page_count))

"""The prefix cache: a tree of prompt blocks, evicted leaf by leaf.

It keeps no pages: a node has a row number, and the owner keeps the pages of row `r` wherever it
likes. Nor does it know which pool is short: the owner evicts until it has what it needs.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(eq=False)
class Node:
    """One full block of a prompt, reached through all blocks before it.

    `depth` counts blocks from the root (the first block has 1); `row` indexes the owner's tables;
    `checkpoint` is the serial of what is kept to continue from here (the recurrent state, the pages
    of the window), 0 where there is none;
    `locks` counts the running requests whose prefix ends here; `last_used` is a tick of the cache.
    """

    block_hash: int
    row: int
    depth: int
    parent: "Node | None"
    children: "dict[int, Node]" = field(default_factory=dict)
    checkpoint: int = 0
    locks: int = 0
    last_used: int = 0


class PrefixCache:
    """Prompt blocks by hash, with locks and least-recently-used eviction of leaves.

    Only the end of a locked path carries the lock: while that node is there, its ancestors have
    children, and only leaves are evicted. Evictable leaves are kept in a heap with stale entries,
    not in a linked list: a path of hundreds of nodes is touched by writing their ticks, and the
    heap sees one entry per release.
    """

    def __init__(self, rows: int) -> None:
        self.root = Node(block_hash=-1, row=-1, depth=0, parent=None)
        self._free_rows = list(range(rows - 1, -1, -1))
        self._leaves: list[tuple[int, int, Node]] = []
        self._pushes = 0
        self._tick = 0

    def match(self, block_hashes: Sequence[int]) -> list[Node]:
        """Return the nodes of the longest known prefix, first block first. Changes nothing."""
        path = []
        node = self.root
        for block_hash in block_hashes:
            child = node.children.get(block_hash)
            if child is None:
                break
            path.append(child)
            node = child
        return path

    def extend(self, end: Node, block_hashes: Sequence[int]) -> list[Node]:
        """Add a chain of new blocks below `end`, which must be locked or the root."""
        chain = []
        node = end
        for block_hash in block_hashes:
            child = Node(block_hash, self._free_rows.pop(), node.depth + 1, parent=node)
            node.children[block_hash] = child
            chain.append(child)
            node = child
        return chain

    def lock(self, end: Node) -> None:
        """Keep `end` and all its ancestors until `unlock`."""
        end.locks += 1

    def unlock(self, end: Node) -> None:
        """Undo one `lock`, and mark `end` and its ancestors as used now."""
        end.locks -= 1
        self._touch(end)
        self._offer(end)

    def evict(self) -> list[Node]:
        """Remove the least recently used unlocked leaf, and return what went, leaf first.

        Its ancestors follow while they are unlocked and have neither a checkpoint nor children.
        Empty when every leaf is locked.
        """
        while self._leaves:
            last_used, _, leaf = heapq.heappop(self._leaves)
            if self._evictable(leaf) and leaf.last_used == last_used:
                return self._remove_chain(leaf)
        return []

    def nodes(self) -> list[Node]:
        """Return all nodes, parents before children."""
        found = [self.root]
        for node in found:
            found.extend(node.children.values())
        return found[1:]

    def _remove_chain(self, leaf: Node) -> list[Node]:
        chain = []
        node = leaf
        while node.parent is not None:
            parent = node.parent
            del parent.children[node.block_hash]
            node.parent = None
            self._free_rows.append(node.row)
            chain.append(node)
            node = parent
            if node.checkpoint or not self._evictable(node):
                break
        self._offer(node)
        return chain

    def _touch(self, end: Node) -> None:
        self._tick += 1
        node: Node | None = end
        while node is not None:
            node.last_used = self._tick
            node = node.parent

    def _offer(self, node: Node) -> None:
        if self._evictable(node):
            self._pushes += 1
            heapq.heappush(self._leaves, (node.last_used, self._pushes, node))

    @staticmethod
    def _evictable(node: Node) -> bool:
        return node.parent is not None and not node.children and not node.locks

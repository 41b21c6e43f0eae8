"""The prefix tree of one rank: full blocks others may reuse, evicted least recently used first."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from wavepp_worker.cache.pool import BlockPool
from wavepp_worker.errors import AuditError


class Node:
    """One attached block. ``pins`` counts the sequences that hold it, beside the tree itself."""

    __slots__ = ("block", "children", "key", "last_used", "parent", "pins")

    def __init__(self, key: int, block: int, parent: Node | None) -> None:
        self.key = key
        self.block = block
        self.parent = parent
        self.children = 0
        self.pins = 0
        self.last_used = 0


class PrefixTree:
    """Blocks keyed by their chained hash; a block is attached only below its attached parent.

    Whoever pins a node pins all of its ancestors too, and eviction takes leaves only, so *present* is
    monotone along a prefix: every ancestor of a present block is present. ``match`` relies on it.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._nodes: dict[int, Node] = {}
        self._victims: list[tuple[int, int, Node]] = []
        self._clock = 0
        self._unpinned = 0
        self._pushes = 0
        self._changed: dict[int, bool] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def nodes(self) -> Iterable[Node]:
        return self._nodes.values()

    @property
    def evictable(self) -> int:
        """Blocks that eviction can free: exactly the unpinned ones."""
        return self._unpinned

    def match(self, keys: Sequence[int]) -> int:
        """How many leading ``keys`` are attached, by galloping and bisecting in O(log n) probes."""
        nodes, low, step = self._nodes, 0, 1
        while low < len(keys):
            probe = min(low + step, len(keys))
            if keys[probe - 1] not in nodes:
                high = probe - 1
                while low < high:
                    middle = (low + high + 1) // 2
                    if keys[middle - 1] in nodes:
                        low = middle
                    else:
                        high = middle - 1
                return low
            low, step = probe, step * 2
        return low

    def pin(self, keys: Sequence[int]) -> list[Node]:
        """Pin the nodes of a whole prefix, root first. Every key is attached (``match`` said so)."""
        pinned = [self._nodes[key] for key in keys]
        for node in pinned:
            self._pin(node)
        return pinned

    def attach(self, key: int, parent: Node | None, block: int) -> Node:
        """Pin the node of ``key`` below ``parent``, attaching ``block`` as its content if it is new.

        If another sequence has attached the same prefix already, its node is returned and ``block`` stays
        the caller's private copy. The caller holds a pin on ``parent``.
        """
        node = self._nodes.get(key)
        if node is None:
            node = Node(key, block, parent)
            self._pool.add_owner(block)
            self._nodes[key] = node
            self._unpinned += 1
            if parent is not None:
                parent.children += 1
            self._note_change(key, was_present=False)
        self._pin(node)
        return node

    def unpin(self, pinned: Sequence[Node]) -> None:
        """Give back pins of one prefix, leaves first, and mark the nodes as just used."""
        self._clock += 1
        for node in reversed(pinned):
            node.pins -= 1
            self._pool.drop_owner(node.block)
            node.last_used = self._clock
            if node.pins == 0:
                self._unpinned += 1
                self._offer(node)

    def evict(self, count: int) -> int:
        """Detach up to ``count`` least recently used blocks, leaves first; returns how many."""
        evicted = 0
        while evicted < count and self._victims:
            last_used, _, node = heapq.heappop(self._victims)
            if self._nodes.get(node.key) is not node or node.last_used != last_used:
                continue
            if node.pins or node.children:
                continue
            self._detach(node)
            evicted += 1
        return evicted

    def take_changes(self) -> tuple[list[Node], list[int]]:
        """Nodes attached (parents first) and keys detached (leaves first) since the last call.

        Only net changes: a block that came and went, or went and came back, is in neither.
        """
        changed, self._changed = self._changed, {}
        attached = [self._nodes[key] for key, before in changed.items() if not before and key in self._nodes]
        detached = [key for key, before in changed.items() if before and key not in self._nodes]
        return attached, detached

    def check(self) -> None:
        """Raise AuditError unless counts, parents and the pool's owners agree."""
        children: dict[int, int] = {}
        for node in self._nodes.values():
            if node.parent is not None:
                if self._nodes.get(node.parent.key) is not node.parent:
                    raise AuditError(f"block {node.block} is attached below a parent that is not attached")
                if node.pins and not node.parent.pins:
                    raise AuditError(f"block {node.block} is pinned but its parent is not")
                children[node.parent.key] = children.get(node.parent.key, 0) + 1
            if self._pool.owners(node.block) < 1 + node.pins:
                raise AuditError(f"block {node.block} has fewer owners than the tree and its pins")
        for node in self._nodes.values():
            if node.children != children.get(node.key, 0):
                raise AuditError(f"block {node.block} counts {node.children} children wrongly")
        unpinned = sum(node.pins == 0 for node in self._nodes.values())
        if unpinned != self._unpinned:
            raise AuditError(f"the tree counts {self._unpinned} evictable blocks, {unpinned} are unpinned")

    def _pin(self, node: Node) -> None:
        if node.pins == 0:
            self._unpinned -= 1
        node.pins += 1
        self._pool.add_owner(node.block)

    def _offer(self, node: Node) -> None:
        if node.pins == 0 and node.children == 0:
            self._pushes += 1
            heapq.heappush(self._victims, (node.last_used, self._pushes, node))

    def _detach(self, node: Node) -> None:
        del self._nodes[node.key]
        self._unpinned -= 1
        self._pool.drop_owner(node.block)
        self._note_change(node.key, was_present=True)
        if node.parent is not None:
            node.parent.children -= 1
            self._offer(node.parent)

    def _note_change(self, key: int, was_present: bool) -> None:
        before = self._changed.pop(key, was_present)
        self._changed[key] = before

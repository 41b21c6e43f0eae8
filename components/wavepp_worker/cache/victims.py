"""The order in which one tier gives blocks up: least recently used first, deepest first among equals."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from wavepp_worker.cache.node import Node
from wavepp_worker.cache.revisits import Revisits

_AGES = 1 << 62
"""What a window has passed, and nobody is known to come back to, goes before all else."""
_FEWEST_BEFORE_SWEEP = 64
"""Offers a queue takes before it first sweeps out those that no longer count."""


class VictimQueue:
    """A heap of candidates that is corrected when it is read.

    An entry counts only while ``reclaimable(node)`` and the node has not been used since it was offered. So
    whoever makes a node reclaimable offers it, and nobody has to find it again when it stops being so.
    """

    def __init__(self, tier: int, handicap: int, revisits: Revisits) -> None:
        """``handicap``: what is seldom reused goes as if it had been used so much earlier, on the tree's clock."""
        self._tier = tier
        self._handicap = handicap
        self._revisits = revisits
        self._heap: list[tuple[int, int, int, int, Node]] = []
        self._offers = 0
        self._sweep_at = _FEWEST_BEFORE_SWEEP

    def offer(self, node: Node) -> None:
        self._offers += 1
        age = node.last_used - self._handicap * self._revisits.seldom(node)
        if node.spent:
            age -= _AGES
        heapq.heappush(self._heap, (age, -node.depth, self._offers, node.last_used, node))
        if len(self._heap) > self._sweep_at:
            self._heap = [entry for entry in self._heap if self._current(*entry[3:])]
            heapq.heapify(self._heap)
            self._sweep_at = max(_FEWEST_BEFORE_SWEEP, 2 * len(self._heap))

    def take(self) -> Node | None:
        """The next victim, removed from the queue; None if there is none."""
        node = self._next()
        if node is not None:
            heapq.heappop(self._heap)
        return node

    def take_spent(self) -> Node | None:
        """The next victim, removed from the queue, if it is ``spent``: those come first."""
        node = self._next()
        return self.take() if node is not None and node.spent else None

    def missing(self, nodes: Iterable[Node]) -> list[Node]:
        """Those of ``nodes`` that ``take`` would never return. For audits."""
        known = {id(node) for _, _, _, last_used, node in self._heap if self._current(last_used, node)}
        return [node for node in nodes if id(node) not in known]

    def _next(self) -> Node | None:
        """The next victim, which stays in the queue; what no longer counts before it does not."""
        while self._heap:
            _, _, _, last_used, node = self._heap[0]
            if self._current(last_used, node):
                return node
            heapq.heappop(self._heap)
        return None

    def _current(self, last_used: int, node: Node) -> bool:
        return (
            node.attached
            and node.tier == self._tier
            and not node.pins
            and not node.peers
            and node.last_used == last_used
        )

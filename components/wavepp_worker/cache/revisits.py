"""Whether anybody comes back to where requests went on by themselves: what hangs there can go first if nobody does.

Many prompts go on from a common prefix with tokens of their own. Of a conversation those are reused with its next turn,
of a question that was put to a document never again, and both look alike when they are computed. So it is counted what
became of them: of all, and of those that went on from the same block.
"""

from __future__ import annotations

from collections.abc import Sequence

from wavepp_worker.cache.node import Node

LATEST = 256
"""From so many on, all before count half."""
WEIGHT = 4
"""What is known of all counts as so many of those that went on from one block."""
SELDOM = 1 / 8
"""Share that others come back to, below which what hangs at a block can go first."""


class Revisits:
    """What became of the branches of one prefix tree: others came back to them, or they had to go before."""

    def __init__(self) -> None:
        # Until something is known, all are taken to be reused.
        self._revisits, self._deaths = WEIGHT, 0

    def reused(self, nodes: Sequence[Node]) -> None:
        """These blocks of one prefix, given in its order, are reused."""
        for node in reversed(nodes):
            if node.reused:
                # Whoever reuses a block reuses all before it.
                return
            node.reused = True
            origin = node.parent
            if origin is not None and origin.reused:
                origin.revisits, origin.deaths = _counted(origin.revisits + 1, origin.deaths)
                self._revisits, self._deaths = _counted(self._revisits + 1, self._deaths)

    def evicted(self, node: Node) -> None:
        """A block has to go now, with all below it."""
        origin = node.parent
        if origin is not None and origin.reused and not node.reused:
            origin.revisits, origin.deaths = _counted(origin.revisits, origin.deaths + 1)
            self._revisits, self._deaths = _counted(self._revisits, self._deaths + 1)

    def seldom(self, node: Node) -> bool:
        """Whether nobody reused a block so far, and hardly anybody reuses what goes on from where its branch did."""
        origin = node.origin
        if node.reused or origin is None:
            return False
        expected = WEIGHT * self._revisits / (self._revisits + self._deaths)
        return origin.revisits + expected < SELDOM * (origin.revisits + origin.deaths + WEIGHT)


def _counted(revisits: int, deaths: int) -> tuple[int, int]:
    return (revisits // 2, deaths // 2) if revisits + deaths == LATEST else (revisits, deaths)

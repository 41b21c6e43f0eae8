"""Full attention: every token before the endpoint is needed, so the blocks form a prefix tree."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from wavepp_worker.cache.moves import Tier
from wavepp_worker.cache.node import Node
from wavepp_worker.cache.windows.attention import AttentionWindow
from wavepp_worker.cache.windows.share import Share


class FullWindow(AttentionWindow):
    """Blocks below their parents, on tiers that never get faster down a prefix; look-ups take O(log n) probes."""

    prefix_tree = True
    outlives_process = True

    def needed(self, end: int) -> range:
        return range(end)

    def hint(self, keys: Sequence[bytes], limit: int) -> int:
        return self._index.prefix(self._number, keys, limit)

    def usable(self, keys: Sequence[bytes], limit: int, pinnable: int) -> int:
        """Of a prefix, the pinned part comes first, and so does the part on the device."""
        present = self.tree.match(keys, limit)
        if present <= pinnable:
            return present
        nodes = self.tree.nodes
        pinned = leading(present, lambda at: nodes[keys[at]].pins > 0)
        on_device = leading(present, lambda at: nodes[keys[at]].tier == Tier.DEVICE)
        return present if on_device - pinned <= pinnable else pinned + max(0, pinnable)

    def standing(self, keys: Sequence[bytes], limit: int) -> tuple[int, int]:
        """How many of the first ``limit`` blocks are reusable, and how many of those someone holds."""
        nodes, present = self.tree.nodes, self.tree.match(keys, limit)
        return present, leading(present, lambda at: nodes[keys[at]].pins > 0)

    def lease(self, keys: Sequence[bytes], end: int) -> Share:
        """From the last block up: a look-up of each key would cost more than all the rest."""
        node = self.tree.nodes[keys[end - 1]] if end else None
        pinned: list[Node] = []
        while node is not None:
            pinned.append(node)
            node = node.parent
        pinned.reverse()
        self.tree.pin(pinned)
        return Share(0, pinned)

    def hand_over(self, writer: Share, keys: Sequence[bytes], end: int) -> Share:
        """The writer's whole prefix: whoever holds a block holds all before it."""
        if len(writer.pinned) < end:
            return super().hand_over(writer, keys, end)
        pinned = writer.pinned[:end]
        self.tree.pin(pinned)
        return Share(0, pinned)

    def below_device(self, share: Share) -> list[Node]:
        pinned = share.pinned
        return pinned[leading(len(pinned), lambda at: pinned[at].tier == Tier.DEVICE) :]

    def publish(self, share: Share, keys: Sequence[bytes], computed: int) -> None:
        nodes, pinned = self.tree.nodes, share.pinned
        complete = min(computed // self.block_size, len(keys))
        for at, key in enumerate(keys[share.published : complete], share.published):
            parent = pinned[-1] if pinned else None
            if parent is not None and not parent.attached:
                return
            node = nodes.get(key)
            if node is not None and node.pins and node.tier == Tier.DEVICE:
                # Our copy stays private. Its node is held all the same: our next block goes below it.
                self._hold(share, node)
            else:
                self._publish_block(share, node, key, parent, at)
            share.published = at + 1


def leading(count: int, holds: Callable[[int], bool]) -> int:
    """How many of ``0 … count-1`` satisfy a condition that only a leading part satisfies."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            low = middle + 1
        else:
            high = middle
    return low

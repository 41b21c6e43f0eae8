"""Windows of attention layers: a block is the keys and values of its tokens."""

from __future__ import annotations

from collections.abc import Sequence

from wavepp_worker.cache.moves import Tier
from wavepp_worker.cache.node import Node
from wavepp_worker.cache.windows.share import Allocation, Share
from wavepp_worker.cache.windows.window import Window


class AttentionWindow(Window):
    """A request's table has one device block per block of its prompt; it holds what it published."""

    def new_blocks(self, end: int, prompt_tokens: int) -> int:
        return -(-prompt_tokens // self.block_size) - end

    def ahead(self, request_id: str, writer: Share, end: int, prompt_tokens: int, limit: int) -> int:
        """A writer completes every block."""
        del request_id, writer, end, prompt_tokens
        return limit

    def hand_over(self, writer: Share, keys: Sequence[bytes], end: int) -> Share:
        """What others cannot reuse, as the tree has its like already or lost what is before it, is set apart."""
        needed = self.needed(end)
        nodes = {node.key: node for node in writer.pinned}
        pinned: list[Node] = []
        for at in needed:
            node = nodes.get(keys[at])
            if node is None:
                block = writer.table[at]
                node = self.tree.set_apart(keys[at], at, block)
                writer.private.remove(block)
                writer.pinned.append(node)
                self._own(writer, node)
            pinned.append(node)
        self.tree.pin(pinned)
        return Share(needed.start, pinned)

    def _own(self, share: Share, node: Node) -> None:
        """A request holds a block that it has computed."""

    def _hand_out(self, share: Share, own: list[int], end: int, prompt_tokens: int) -> Allocation:
        del end, prompt_tokens
        share.table = [-1] * share.first + [node.slot for node in share.pinned] + own
        return Allocation() if self.spec.keys_only else Allocation(table=share.table)

    def _publish_block(
        self, share: Share, node: Node | None, key: bytes, parent: Node | None, at: int
    ) -> None:
        """Make block ``at`` of a request's table the reusable block of ``key``, and hold it.

        Args:
            node: the block that is attached under ``key`` now, if any: on the device nobody holds it.
            parent: the block to attach it below.
        """
        block = share.table[at]
        if node is None:
            node = self.tree.attach(key, parent, at, Tier.DEVICE, block, held=True)
            share.pinned.append(node)
        else:
            self.tree.adopt(node, block)
            self._hold(share, node)
        self._own(share, node)
        share.private.discard(block)

    def _hold(self, share: Share, node: Node) -> None:
        self.tree.pin([node])
        share.pinned.append(node)

"""Sliding-window attention: the last ``span`` tokens before the endpoint are needed; blocks have no parents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from wavepp_worker.cache.hint_index import HintIndex
from wavepp_worker.cache.moves import Tier
from wavepp_worker.cache.window_spec import WindowSpec
from wavepp_worker.cache.windows.attention import AttentionWindow
from wavepp_worker.cache.windows.share import Share
from wavepp_worker.cache.windows.window import pin_cost
from wavepp_worker.errors import ConfigError


class SlidingWindow(AttentionWindow):
    """Only the blocks of the span are held; there may be holes before it, so a look-up is a scan backwards.

    A request takes all its blocks at once, and lets go of those that its window has passed.
    """

    outlives_process: ClassVar[bool] = True

    def __init__(self, number: int, spec: WindowSpec, block_size: int, index: HintIndex) -> None:
        if spec.span < 1:
            raise ConfigError(f"window {spec.name} slides over {spec.span} tokens; span is at least 1")
        super().__init__(number, spec, block_size, index)

    def needed(self, end: int) -> range:
        return range(max(0, (end * self.block_size - self.spec.span) // self.block_size), end)

    def hint(self, keys: Sequence[bytes], limit: int) -> int:
        has, number = self._index.has, self._number
        return self._latest_run(lambda at: 0 if has(number, keys[at]) else None, limit, 0)

    def usable(self, keys: Sequence[bytes], limit: int, pinnable: int) -> int:
        nodes = self.tree.nodes
        return self._latest_run(lambda at: pin_cost(nodes.get(keys[at])), limit, pinnable)

    def publish(self, share: Share, keys: Sequence[bytes], computed: int) -> None:
        nodes = self.tree.nodes
        for at in range(share.published, min(computed // self.block_size, len(keys))):
            node = nodes.get(keys[at])
            # Where others hold a block already, ours stays private.
            if node is None or not node.pins or node.tier != Tier.DEVICE:
                self._publish_block(share, node, keys[at], None, at)
            share.published = at + 1

    def pass_by(self, share: Share, computed: int) -> None:
        first = self.needed(computed // self.block_size).start
        if first <= share.passed:
            return
        passed = set(share.table[share.passed : first])
        gone = [node for node in share.pinned if node.slot in passed]
        share.pinned = [node for node in share.pinned if node.slot not in passed]
        self.tree.unpin(gone)
        for block in passed & share.private:
            self.tree.pools[Tier.DEVICE].drop_owner(block)
        share.private -= passed
        share.table[share.passed : first] = [-1] * (first - share.passed)
        share.passed = first

    def ahead(self, request_id: str, writer: Share, end: int, prompt_tokens: int, limit: int) -> int:
        """Nothing where the writer never held what is needed there, or has passed it: others may have it by now."""
        del request_id, end, prompt_tokens
        return limit if self.needed(limit).start >= max(writer.first, writer.passed) else 0

    def _latest_run(self, cost: Callable[[int], int | None], limit: int, affordable: int) -> int:
        """The largest ``end <= limit`` whose span is present and costs at most ``affordable``: one scan.

        Args:
            cost: what a block costs; None if it is not present.
        """
        end, low, total = limit, limit, 0
        while end:
            first = self.needed(end).start
            while low > first:
                price = cost(low - 1)
                if price is None:
                    end, low, total = low - 1, low - 1, 0
                    break
                low, total = low - 1, total + price
            else:
                if total <= affordable:
                    return end
                total -= cost(end - 1) or 0
                end -= 1
        return 0

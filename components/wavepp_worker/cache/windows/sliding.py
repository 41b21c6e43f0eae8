"""Sliding-window attention: the last ``span`` tokens before the endpoint are needed; blocks have no parents."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

from wavepp_worker.cache.escrow import Asked
from wavepp_worker.cache.hint_index import HintIndex
from wavepp_worker.cache.moves import Move, Tier
from wavepp_worker.cache.node import Node
from wavepp_worker.cache.window_spec import WindowSpec
from wavepp_worker.cache.windows.attention import AttentionWindow
from wavepp_worker.cache.windows.share import Allocation, Share, Taken
from wavepp_worker.cache.windows.window import pin_cost
from wavepp_worker.errors import ConfigError


class SlidingWindow(AttentionWindow):
    """Only the blocks of the span are held; there may be holes before it, so a look-up is a scan backwards.

    A request takes blocks as they are computed, and lets go of those that its window has passed. What it passes, it
    counts on as room for what it computes next, so who else holds such a block takes room by that (``BlockTree.lent``).
    """

    outlives_process: ClassVar[bool] = True
    begins: ClassVar[bool] = True

    def __init__(self, number: int, spec: WindowSpec, block_size: int, index: HintIndex) -> None:
        if spec.span < 1:
            raise ConfigError(f"window {spec.name} slides over {spec.span} tokens; span is at least 1")
        super().__init__(number, spec, block_size, index)
        self.set_aside = spec.wave or 0
        self._kept = -(-spec.span // block_size) + 1
        self._lent: dict[str, frozenset[int]] = {}

    def needed(self, end: int) -> range:
        return range(max(0, (end * self.block_size - self.spec.span) // self.block_size), end)

    def hint(self, keys: Sequence[bytes], limit: int) -> int:
        has, number = self._index.has, self._number
        return self._latest_run(lambda at: 0 if has(number, keys[at]) else None, limit, 0)

    def usable(self, keys: Sequence[bytes], limit: int, pinnable: int) -> int:
        nodes = self.tree.nodes
        return self._latest_run(lambda at: pin_cost(nodes.get(keys[at])), limit, pinnable)

    def new_blocks(self, end: int, prompt_tokens: int) -> int:
        """What it holds between two waves at most; what a chunk needs beyond is set aside for the wave."""
        blocks = super().new_blocks(end, prompt_tokens)
        return blocks if self.spec.wave is None else min(blocks, self._kept)

    def has_room(self, blocks: int, headroom: int) -> bool:
        """The headroom is a share of its own blocks, where there are fewer of them than of tokens."""
        return super().has_room(
            blocks, headroom if self.spec.wave is None else min(headroom, self.spec.blocks // 32)
        )

    def materialise(
        self, request_id: str, share: Share, end: int, prompt_tokens: int, moves: list[Move]
    ) -> Allocation:
        """Bring up what it resumes from. What it computes gets blocks as it is computed, out of its escrow."""
        below = self.below_device(share)
        for node, slot in zip(below, self._take(request_id, len(below), moves), strict=True):
            self.allocator.onboard(node, slot, moves)
        share.published = share.taken = share.end = end
        share.total = -(-prompt_tokens // self.block_size)
        self.reserve(request_id, self.new_blocks(end, prompt_tokens), committed=True)
        return self._hand_out(share, [-1] * (share.total - end), end, prompt_tokens)

    def begin(self, request_id: str, share: Share, end: int, moves: list[Move]) -> Taken:
        first = share.taken
        count = -(-end // self.block_size) - first
        if count <= 0:
            return Taken()
        reserved = self.ledger.get(request_id).blocks
        own = min(count, reserved)
        if count - own > self.set_aside:
            raise ValueError(
                f"request {request_id} computes up to token {end} in one wave, which takes {count} blocks, where "
                f"{reserved} are its own and {self.set_aside} are set aside"
            )
        blocks = self._take(request_id, count, moves)
        self.reserve(request_id, reserved - own, committed=True)
        self.set_aside -= count - own
        share.borrowed += count - own
        share.table[first : first + count] = blocks
        share.private.update(blocks)
        share.taken += count
        return Taken(first=first, blocks=blocks)

    def publish(self, share: Share, keys: Sequence[bytes], computed: int) -> None:
        nodes = self.tree.nodes
        for at in range(share.published, min(computed // self.block_size, len(keys))):
            node = nodes.get(keys[at])
            # Where others hold a block already, ours stays private; also below the device, where ours shall be room.
            if node is None or not node.pins or (node.tier != Tier.DEVICE and self.spec.wave is None):
                self._publish_block(share, node, keys[at], None, at)
            share.published = at + 1

    def want(self, share: Share, end: int) -> None:
        share.wanted.update(self.needed(end))

    def pass_by(self, request_id: str, share: Share, computed: int) -> None:
        """What it lets go of becomes its escrow again, as far as it will hold as much once more."""
        first = max(share.passed, self.needed(computed // self.block_size).start)
        passed = {block: at for at, block in enumerate(share.table[share.passed : first], share.passed)}
        gone = [node for node in share.pinned if node.slot in passed]
        share.pinned = [node for node in share.pinned if node.slot not in passed]
        for node in gone:
            node.passed = passed[node.slot] not in share.wanted
        self._let_go(share, gone, passed.keys() & share.private)
        share.private -= passed.keys()
        share.table[share.passed : first] = [-1] * (first - share.passed)
        share.passed = first
        held = share.taken - max(first, share.end)
        borrowed = (
            share.borrowed if self.spec.wave is None else min(share.borrowed, max(0, held - self._kept))
        )
        self.set_aside += share.borrowed - borrowed
        share.borrowed = borrowed
        left = share.total - share.taken
        most = left if self.spec.wave is None else max(0, self._kept - held)
        self.reserve(request_id, min(left, most), committed=True)

    def release(self, request_id: str, share: Share) -> None:
        self.set_aside += share.borrowed
        share.borrowed = 0
        self.ledger.drop(Asked(request_id))
        self._let_go(share, share.pinned, share.private)
        share.pinned, share.private = [], set()
        super().release(request_id, share)

    def can_lend(self, writer: str, end: int) -> bool:
        """Whoever is handed a block over keeps it from becoming the writer's room: that takes room of its own."""
        if self.spec.wave is None:
            return True
        return self.has_room(self.more_lent(writer, self._lent.get(writer, frozenset()) | {end}), 0)

    def more_lent(self, writer: str, ends: Iterable[int]) -> int:
        return self._lent_at(ends) - self._lent_at(self._lent.get(writer, ()))

    def lend(self, writer: str, ends: Iterable[int]) -> None:
        ends = frozenset(ends)
        self._lent.pop(writer, None)
        self.ledger.drop(Asked(writer))
        if lent := self._lent_at(ends):
            self._lent[writer] = ends
            self.reserve(Asked(writer), lent, committed=True)

    def ahead(self, request_id: str, writer: Share, end: int, prompt_tokens: int, limit: int) -> int:
        """Nothing where the writer never held what is needed there, or has passed it: others may have it by now."""
        del request_id, end, prompt_tokens
        return limit if self.needed(limit).start >= max(writer.first, writer.passed) else 0

    def _lent_at(self, ends: Iterable[int]) -> int:
        """Blocks of room that those take who wait to resume at these; the same end is handed over to all at once.

        What several need who end apart counts for each of them: the first of them may be gone before the others come.
        """
        return 0 if self.spec.wave is None else sum(len(self.needed(end)) for end in frozenset(ends))

    def _own(self, share: Share, node: Node) -> None:
        if self.spec.wave is not None:
            self.tree.own(node, share)

    def _let_go(self, share: Share, nodes: Sequence[Node], private: Iterable[int]) -> None:
        for node in nodes:
            if node.owner is share:
                self.tree.disown(node)
        self.tree.unpin(nodes)
        for block in private:
            self.tree.pools[Tier.DEVICE].drop_owner(block)

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

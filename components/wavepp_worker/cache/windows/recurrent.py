"""Recurrent layers: a request resumes from a snapshot at exactly its endpoint (paper, section 4.4)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain
from typing import ClassVar

from wavepp_worker.cache.escrow import Asked
from wavepp_worker.cache.hint_index import HintIndex
from wavepp_worker.cache.moves import Move, Tier
from wavepp_worker.cache.window_spec import WindowSpec
from wavepp_worker.cache.windows.share import Allocation, Share, Taken
from wavepp_worker.cache.windows.window import Window, pin_cost
from wavepp_worker.errors import ConfigError


class RecurrentWindow(Window):
    """A block is one state: a snapshot, named by the last block before its position, or a working state.

    A request takes snapshots at intervals, and where it is asked to. The room for the latter is in an escrow of its own
    until the chunk begins that computes as far: then a block is allocated.
    """

    leaves_snapshots: ClassVar[bool] = True
    begins: ClassVar[bool] = True
    outlives_process: ClassVar[bool] = True

    def __init__(self, number: int, spec: WindowSpec, block_size: int, index: HintIndex) -> None:
        if spec.interval is not None and (spec.interval < 1 or spec.interval % block_size):
            raise ConfigError(
                f"window {spec.name} takes a snapshot every {spec.interval} tokens; interval must be "
                f"a multiple of the block size {block_size}, because only whole blocks have a key"
            )
        super().__init__(number, spec, block_size, index)
        self._asked: dict[str, set[int]] = {}

    def needed(self, end: int) -> range:
        return range(max(0, end - 1), end)

    def new_blocks(self, end: int, prompt_tokens: int) -> int:
        return 1 + len(self.snapshot_positions(end, prompt_tokens))

    def snapshot_positions(self, end: int, prompt_tokens: int) -> range:
        """Token positions at which a request that resumes after ``end`` blocks takes snapshots, ascending.

        Never more than fit on the device beside the working state and the snapshot it resumes from: fewer
        snapshots mean less reuse later, but no prompt is too long to run.
        """
        interval = self.spec.interval
        if interval is None:
            return range(0)
        first = (end * self.block_size // interval + 1) * interval
        fitting = self.spec.blocks - 1 - (end > 0)
        count = len(range(first, prompt_tokens, interval))
        most = count if self.spec.max_snapshots is None else self.spec.max_snapshots
        kept = max(0, min(count, fitting, most))
        return range(first + (count - kept) * interval, prompt_tokens, interval)

    def hint(self, keys: Sequence[bytes], limit: int) -> int:
        return self._index.latest(self._number, keys, limit)

    def usable(self, keys: Sequence[bytes], limit: int, pinnable: int) -> int:
        nodes = self.tree.nodes
        for end in range(min(limit, len(keys)), 0, -1):
            cost = pin_cost(nodes.get(keys[end - 1]))
            if cost is not None and cost <= pinnable:
                return end
        return 0

    def has_room(self, blocks: int, headroom: int) -> bool:
        """Its blocks are states: a headroom of blocks of tokens asks nothing of it."""
        del headroom
        return super().has_room(blocks, 0)

    def ahead(self, request_id: str, writer: Share, end: int, prompt_tokens: int, limit: int) -> int:
        """Only where the writer is yet to take a snapshot."""
        # Once it runs, it has a working state at least, and its snapshots are those it has not published.
        planned: Collection[int] = (
            writer.snapshots if writer.private else self.snapshot_positions(end, prompt_tokens)
        )
        positions = chain(planned, self._asked.get(request_id, ()))
        return max((at // self.block_size for at in positions if at <= limit * self.block_size), default=0)

    def can_ask(self) -> bool:
        """With room for the snapshot beside all escrows, and for the working state of who resumes from it."""
        return self.spec.interval is not None and self.has_room(2, 0)

    def ask(self, request_id: str, end: int) -> None:
        asked = self._asked.setdefault(request_id, set())
        asked.add(end * self.block_size)
        self.reserve(Asked(request_id), len(asked), committed=True)

    def begin(self, request_id: str, share: Share, end: int, moves: list[Move]) -> Taken:
        asked = self._asked.get(request_id, set())
        due = sorted(at for at in asked if at <= end)
        if due:
            blocks = self._take(Asked(request_id), len(due), moves)
            share.snapshots.update(zip(due, blocks, strict=True))
            share.private.update(blocks)
            asked.difference_update(due)
            self.reserve(Asked(request_id), len(asked), committed=True)
        return Taken({at: block for at, block in share.snapshots.items() if at <= end})

    def release(self, request_id: str, share: Share) -> None:
        self._asked.pop(request_id, None)
        self.ledger.drop(Asked(request_id))
        super().release(request_id, share)

    def hand_over(self, writer: Share, keys: Sequence[bytes], end: int) -> Share:
        """The snapshot was published by this very step, so nobody can have reclaimed it."""
        del writer
        return self.lease(keys, end)

    def publish(self, share: Share, keys: Sequence[bytes], computed: int) -> None:
        for position in sorted(at for at in share.snapshots if at <= computed):
            self._publish_snapshot(share, keys[position // self.block_size - 1], position)

    def _publish_snapshot(self, share: Share, key: bytes, position: int) -> None:
        """Nobody writes to a snapshot once it is taken, so the request does not go on holding it."""
        block = share.snapshots.pop(position)
        share.private.discard(block)
        node = self.tree.nodes.get(key)
        if node is None:
            self.tree.attach(key, None, position // self.block_size - 1, Tier.DEVICE, block, held=False)
        elif node.tier == Tier.DEVICE:
            self.tree.pools[Tier.DEVICE].drop_owner(block)
        else:
            self.tree.adopt(node, block)

    def _hand_out(self, share: Share, own: list[int], end: int, prompt_tokens: int) -> Allocation:
        state, *taken = own
        share.snapshots = dict(zip(self.snapshot_positions(end, prompt_tokens), taken, strict=True))
        resume = share.pinned[0].slot if share.pinned else None
        return Allocation(resume=resume, state=state)

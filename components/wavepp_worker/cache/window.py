"""One window of one rank: its reusable blocks and its escrows, and what a request needs of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from wavepp_worker.cache.escrow import Escrow, EscrowLedger
from wavepp_worker.cache.hint_index import HintIndex
from wavepp_worker.cache.lookup import hinted, leading, usable
from wavepp_worker.cache.moves import Move, Tier
from wavepp_worker.cache.node import Node
from wavepp_worker.cache.tree import TieredTree
from wavepp_worker.cache.window_spec import WindowSpec


@dataclass
class Share:
    """What one request holds of one window, from its lease to its release.

    Attributes:
        first: index in the prefix of ``pinned[0]``.
        pinned: blocks held in the tree: the leased ones, later also those the request published.
        table: device block of each logical block, -1 left of a sliding window; empty in recurrent windows.
        private: device blocks that only this request has.
        published: blocks of the prefix that have been offered to the tree.
        snapshots: device block of each snapshot not published yet, by token position.
    """

    first: int
    pinned: list[Node]
    table: list[int] = field(default_factory=list)
    private: set[int] = field(default_factory=set)
    published: int = 0
    snapshots: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Claimed:
    """What materialising took from one window; see ``Materialised``."""

    table: list[int]
    resume: int | None
    state: int | None
    snapshots: dict[int, int]


class Window:
    """Not thread-safe: the rank's mutex is held, except for ``hint``.

    Args:
        number: index of the window in the rank.
        spec: what it is.
        block: tokens per block.
        index: the rank's hint index.
    """

    def __init__(self, number: int, spec: WindowSpec, block: int, index: HintIndex) -> None:
        self.spec = spec
        self.block = block
        self.tree = TieredTree(number, spec, index)
        self.ledger = EscrowLedger()
        self._number = number
        self._index = index

    def hint(self, keys: Sequence[int], limit: int) -> int:
        """Blocks the index believes usable, at most ``limit``."""
        return hinted(self.spec, self._number, self.block, self._index, keys, limit)

    def usable(self, keys: Sequence[int], limit: int, claims: int) -> int:
        return usable(self.spec, self.block, self.tree, keys, limit, claims)

    def lease(self, keys: Sequence[int], end: int) -> Share:
        """Pin what resuming after ``end`` blocks needs; ``usable`` said it is there."""
        needed = self.spec.needed(end, self.block)
        nodes = self.tree.nodes
        pinned = [nodes[key] for key in keys[needed.start : needed.stop]]
        self.tree.pin(pinned)
        return Share(needed.start, pinned)

    def freed_by_lowering(self, share: Share, end: int) -> int:
        """Device blocks that become reclaimable for certain when a lease goes down to ``end`` or below."""
        return _reclaimable_without(share.pinned[max(0, end - share.first) :])

    def has_committed_room(self, request_id: str, blocks: int, giving_up: Share | None) -> bool:
        """Whether ``blocks`` are there beside the others' committed escrows.

        Args:
            giving_up: a share that is about to be let go of; what only it holds counts as there.
        """
        escrow = self.ledger.get(request_id)
        others = self.ledger.promised - escrow.blocks * escrow.committed
        gained = _reclaimable_without(giving_up.pinned) if giving_up is not None else 0
        return self.tree.available + gained - others >= blocks

    def claims(self, request_id: str) -> int:
        """Unpinned device blocks the request may pin without touching what is committed to others."""
        escrow = self.ledger.get(request_id)
        return self.tree.available - self.ledger.promised + escrow.blocks * escrow.committed

    def below_device(self, share: Share) -> list[Node]:
        """The blocks a request holds whose bytes are not on the device."""
        pinned = share.pinned
        if self.spec.kind == "full":
            return pinned[leading(len(pinned), lambda at: pinned[at].tier == Tier.DEVICE) :]
        return [node for node in pinned if node.tier != Tier.DEVICE]

    def demand(self, share: Share, end: int, prompt_tokens: int) -> int:
        """Device blocks to allocate at the endpoint: its own, and one per held block below the device."""
        return len(self.below_device(share)) + self.spec.new_blocks(end, prompt_tokens, self.block)

    def has_room(self, blocks: int, floor: int) -> bool:
        """Whether ``blocks`` are there beside all escrows and ``floor`` token blocks for others."""
        left = self.tree.available - self.ledger.reserved
        return left - (0 if self.spec.kind == "recurrent" else floor) >= blocks

    def settle(self) -> None:
        """After pinning: destinations for victims that the pinned blocks have taken are gone."""
        self.ledger.shrink_destinations(self.tree.destinations)

    def reserve(self, request_id: str, blocks: int, committed: bool) -> None:
        """Put an escrow in place of the request's earlier one; the caller has checked the room."""
        self.ledger.drop(request_id)
        reclaimed = max(0, self.ledger.reserved + blocks - self.tree.pools[Tier.DEVICE].free)
        room = max(0, self.tree.destinations - self.ledger.destinations)
        self.ledger.put(request_id, Escrow(blocks, min(blocks, reclaimed, room), committed))

    def materialise(
        self, request_id: str, share: Share, end: int, prompt_tokens: int, moves: list[Move]
    ) -> Claimed:
        """Turn lease and escrow into device blocks; adds the copies this takes to ``moves``."""
        tree = self.tree
        below = self.below_device(share)
        new = self.spec.new_blocks(end, prompt_tokens, self.block)
        others = self.ledger.destinations - self.ledger.get(request_id).destinations
        blocks = tree.allocate(len(below) + new, max(0, tree.destinations - others), moves)
        for node, slot in zip(below, blocks, strict=False):
            tree.onboard(node, slot, moves)
        own = blocks[len(below) :]
        share.private = set(own)
        share.published = end
        if self.spec.kind != "recurrent":
            share.table = [-1] * share.first + [node.slot for node in share.pinned] + own
            return Claimed(share.table, None, None, {})
        share.snapshots = dict(
            zip(self.spec.boundaries(end, prompt_tokens, self.block), own[1:], strict=True)
        )
        resume = share.pinned[0].slot if share.pinned else None
        return Claimed([], resume, own[0], dict(share.snapshots))

    def publish(self, share: Share, keys: Sequence[int], computed: int) -> None:
        """Make what is complete among the first ``computed`` tokens reusable.

        Never takes room from an escrow: where another request was faster, either its block is held already,
        or ours takes its place.
        """
        if self.spec.kind == "recurrent":
            for position in [at for at in share.snapshots if at <= computed]:
                self._publish_snapshot(share, keys[position // self.block - 1], position)
            return
        for at in range(share.published, min(computed // self.block, len(keys))):
            if self.spec.kind == "full":
                parent = share.pinned[-1] if share.pinned else None
                if parent is not None and not parent.attached:
                    return
                self._publish_block(share, keys[at], parent, at)
            else:
                self._publish_block(share, keys[at], None, at)
            share.published = at + 1

    def release(self, request_id: str, share: Share) -> None:
        """Escrow first, then what the request holds."""
        self.ledger.drop(request_id)
        self.tree.unpin(share.pinned)
        for block in share.private:
            self.tree.pools[Tier.DEVICE].drop_owner(block)
        share.pinned, share.private, share.snapshots = [], set(), {}

    def _publish_block(self, share: Share, key: int, parent: Node | None, at: int) -> None:
        block = share.table[at]
        node = self.tree.nodes.get(key)
        if node is not None and node.pins and node.tier == Tier.DEVICE:
            # Our copy stays private. A prefix tree needs the pin all the same: our next block goes below it.
            if self.spec.kind == "full":
                self._hold(share, node)
            return
        if node is None:
            share.pinned.append(self.tree.attach(key, parent, at, Tier.DEVICE, block, held=True))
        else:
            self.tree.adopt(node, block)
            self._hold(share, node)
        share.private.discard(block)

    def _publish_snapshot(self, share: Share, key: int, position: int) -> None:
        """Nobody writes to a snapshot once it is taken, so the request does not go on holding it."""
        block = share.snapshots.pop(position)
        share.private.discard(block)
        node = self.tree.nodes.get(key)
        if node is None:
            self.tree.attach(key, None, position // self.block - 1, Tier.DEVICE, block, held=False)
        elif node.tier == Tier.DEVICE:
            self.tree.pools[Tier.DEVICE].drop_owner(block)
        else:
            self.tree.adopt(node, block)

    def _hold(self, share: Share, node: Node) -> None:
        self.tree.pin([node])
        share.pinned.append(node)


def _reclaimable_without(pinned: Sequence[Node]) -> int:
    """How many of these blocks on the device have no other holder."""
    return sum(node.pins == 1 and node.tier == Tier.DEVICE for node in pinned)

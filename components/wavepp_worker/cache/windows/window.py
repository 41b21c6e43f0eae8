"""What every window of a rank can do for a request, from the hint to the release.

A subclass says what is needed to resume and to run, how its blocks are looked up, and when they become
reusable; the rest is the same for all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import ClassVar

from wavepp_worker.cache.escrow import Escrow, EscrowLedger, Holder
from wavepp_worker.cache.hint_index import HintIndex
from wavepp_worker.cache.moves import Move, Tier
from wavepp_worker.cache.node import Node
from wavepp_worker.cache.results import CacheUse, TierFigures
from wavepp_worker.cache.tier_allocator import TierAllocator
from wavepp_worker.cache.tree import BlockTree
from wavepp_worker.cache.window_spec import WindowSpec
from wavepp_worker.cache.windows.share import Allocation, Share, Taken
from wavepp_worker.errors import ConfigError


class Window(ABC):
    """One window of one rank: its reusable blocks and its escrows.

    *Room* is what can be had: device blocks that are free or reusable and held by nobody. Not thread-safe:
    the rank's mutex is held, except for ``hint``.

    Args:
        number: index of the window in the rank.
        spec: what it is.
        block_size: tokens per block.
        index: the rank's hint index.

    Attributes:
        prefix_tree: whether its blocks have parents, so that what is present is monotone along a prefix.
        leaves_snapshots: whether requests can resume only where an earlier one was made to leave something.
        outlives_process: whether what is on disk can be found again after a restart.
        begins: whether requests take blocks while they run, so that ``begin`` has to come before each chunk.
        set_aside: room that is nobody's: for what a wave takes for as long as it runs.

    Raises:
        ConfigError: a window of this kind cannot work like that.
    """

    prefix_tree: ClassVar[bool] = False
    leaves_snapshots: ClassVar[bool] = False
    outlives_process: ClassVar[bool] = False
    begins: ClassVar[bool] = False

    def __init__(self, number: int, spec: WindowSpec, block_size: int, index: HintIndex) -> None:
        if spec.blocks < 1 or spec.host_blocks < 0 or spec.disk_blocks < 0:
            raise ConfigError(
                f"window {spec.name} has {spec.blocks} blocks on the device, {spec.host_blocks} on the host "
                f"and {spec.disk_blocks} on disk; the device needs at least 1, the others at least 0"
            )
        self.spec = spec
        self.block_size = block_size
        self.tree = BlockTree(number, (spec.blocks, spec.host_blocks, spec.disk_blocks), index)
        self.allocator = TierAllocator(self.tree)
        self.ledger = EscrowLedger()
        self.set_aside = 0
        self._number = number
        self._index = index

    @abstractmethod
    def needed(self, end: int) -> range:
        """The blocks whose content must be there to resume after ``end`` blocks."""

    @abstractmethod
    def new_blocks(self, end: int, prompt_tokens: int) -> int:
        """Device blocks a request takes for itself when it resumes after ``end`` blocks."""

    @abstractmethod
    def hint(self, keys: Sequence[bytes], limit: int) -> int:
        """Blocks the index believes usable, at most ``limit``; owns nothing, may be stale."""

    @abstractmethod
    def usable(self, keys: Sequence[bytes], limit: int, pinnable: int) -> int:
        """The largest ``n <= limit`` blocks after which this window can resume.

        Args:
            pinnable: most device blocks held by nobody that may be pinned for it; each is room less.
        """

    @abstractmethod
    def publish(self, share: Share, keys: Sequence[bytes], computed: int) -> None:
        """Make what is complete among the first ``computed`` tokens reusable.

        Never takes room from an escrow: where another request was faster, either its block is held already,
        or ours takes its place.
        """

    def pass_by(self, request_id: str, share: Share, computed: int) -> None:
        """Let go of what no token after the first ``computed`` ones sees. What was published stays reusable.

        After everybody who waited for these blocks has got theirs.
        """
        del request_id, share, computed

    def want(self, share: Share, end: int) -> None:
        """Others are expected to resume after ``end`` blocks of a request that is yet to compute them."""
        del share, end

    def can_lend(self, writer: str, end: int) -> bool:
        """Whether one more request may wait for ``writer``'s blocks, to resume after ``end``."""
        del writer, end
        return True

    def more_lent(self, writer: str, ends: Iterable[int]) -> int:
        """Blocks of room that ``lend`` would take for these endpoints beyond what it took."""
        del writer, ends
        return 0

    def lend(self, writer: str, ends: Iterable[int]) -> None:
        """These are now the endpoints, in blocks, of all who wait for ``writer``'s blocks."""
        del writer, ends

    @abstractmethod
    def ahead(self, request_id: str, writer: Share, end: int, prompt_tokens: int, limit: int) -> int:
        """The largest ``n <= limit`` blocks after which a request can resume that waits for ``request_id``'s blocks.

        Args:
            writer: what that request holds.
            end: its own endpoint in blocks, below ``limit``.
            prompt_tokens: length of its prompt, which begins with the ``limit`` blocks.
        """

    @abstractmethod
    def hand_over(self, writer: Share, keys: Sequence[bytes], end: int) -> Share:
        """Pin what resuming after ``end`` blocks needs, all of which ``writer`` has just completed.

        Takes no room: the writer holds it, or let go of it with the same step.

        Args:
            keys: of the writer's blocks.
        """

    @abstractmethod
    def _hand_out(self, share: Share, own: list[int], end: int, prompt_tokens: int) -> Allocation:
        """Say what each of a request's ``own`` new device blocks is for; all it pinned is on the device."""

    def can_ask(self) -> bool:
        """Whether a request that has not computed as far may be asked to leave behind what resuming there needs."""
        return False

    def ask(self, request_id: str, end: int) -> None:
        """Have a request leave behind what resuming after ``end`` blocks needs; ``can_ask`` said it may."""
        raise NotImplementedError

    def begin(self, request_id: str, share: Share, end: int, moves: list[Move]) -> Taken:
        """A sequence's tokens up to ``end`` are about to be computed: what it takes for them."""
        del request_id, share, end, moves
        return Taken()

    @property
    def room(self) -> int:
        """Device blocks that can be had, and that are not for the wave that runs."""
        return self.tree.room(Tier.DEVICE) - self.tree.lent - self.set_aside

    @property
    def free(self) -> int:
        """Device blocks without content beside all escrows."""
        return max(0, self.tree.pools[Tier.DEVICE].free - self.ledger.reserved)

    @property
    def unreserved(self) -> int:
        """Room beside all escrows, in blocks."""
        return self.room - self.ledger.reserved

    def lease(self, keys: Sequence[bytes], end: int) -> Share:
        """Pin what resuming after ``end`` blocks needs; ``usable`` said it is there."""
        needed = self.needed(end)
        nodes = self.tree.nodes
        pinned = [nodes[key] for key in keys[needed.start : needed.stop]]
        self.tree.pin(pinned)
        return Share(needed.start, pinned)

    def waiting_share(self, end: int) -> Share:
        """What a request holds that will resume after ``end`` blocks of another, and waits for them."""
        return Share(self.needed(end).start, [])

    def pinnable(self, request_id: str) -> int:
        """Device blocks held by nobody that the request may pin without touching what is committed to others."""
        escrow = self.ledger.get(request_id)
        return self.room - self.ledger.promised + escrow.blocks * escrow.committed

    def freed_by_lowering(self, share: Share, end: int) -> int:
        """Device blocks that become room for certain when a lease goes down to ``end`` or below."""
        return _room_without(share.pinned[max(0, end - share.first) :])

    def below_device(self, share: Share) -> list[Node]:
        """The blocks a request holds whose bytes are not on the device."""
        return [node for node in share.pinned if node.tier != Tier.DEVICE]

    def demand(self, share: Share, end: int, prompt_tokens: int) -> int:
        """Device blocks to allocate at the endpoint: its own, and one per held block below the device."""
        return len(self.below_device(share)) + self.new_blocks(end, prompt_tokens)

    def has_room(self, blocks: int, headroom: int) -> bool:
        """Whether there is room for ``blocks`` beside all escrows and ``headroom`` blocks of tokens for others."""
        return self.unreserved - headroom >= blocks

    def has_committed_room(self, request_id: str, blocks: int, giving_up: Share | None) -> bool:
        """Whether there is room for ``blocks`` beside the others' committed escrows.

        Args:
            giving_up: a share that is about to be let go of; what only it holds counts as room.
        """
        escrow = self.ledger.get(request_id)
        others = self.ledger.promised - escrow.blocks * escrow.committed
        gained = _room_without(giving_up.pinned) if giving_up is not None else 0
        return self.room + gained - others >= blocks

    def shrink_destinations(self) -> None:
        """After pinning: destinations for victims that the pinned blocks have taken are gone."""
        self.ledger.shrink_destinations(self.allocator.destinations)

    def reserve(self, holder: Holder, blocks: int, committed: bool) -> None:
        """Put an escrow in place of the holder's earlier one; the caller has checked the room."""
        self.ledger.drop(holder)
        reclaimed = max(0, self.ledger.reserved + blocks - self.tree.pools[Tier.DEVICE].free)
        destinations = max(0, self.allocator.destinations - self.ledger.destinations)
        self.ledger.put(holder, Escrow(blocks, min(blocks, reclaimed, destinations), committed))

    def materialise(
        self, request_id: str, share: Share, end: int, prompt_tokens: int, moves: list[Move]
    ) -> Allocation:
        """Turn lease and escrow into device blocks; adds the copies this takes to ``moves``."""
        below = self.below_device(share)
        blocks = self._take(request_id, len(below) + self.new_blocks(end, prompt_tokens), moves)
        for node, slot in zip(below, blocks, strict=False):
            self.allocator.onboard(node, slot, moves)
        own = blocks[len(below) :]
        share.private = set(own)
        share.published = end
        self.ledger.drop(request_id)
        return self._hand_out(share, own, end, prompt_tokens)

    def _take(self, holder: Holder, blocks: int, moves: list[Move]) -> list[int]:
        """Allocate what a holder has committed, leaving the others' destinations to them."""
        others = self.ledger.destinations - self.ledger.get(holder).destinations
        return self.allocator.allocate(blocks, max(0, self.allocator.destinations - others), moves)

    def release(self, request_id: str, share: Share) -> None:
        """Escrow first, then what the request holds."""
        self.ledger.drop(request_id)
        self.tree.unpin(share.pinned)
        for block in share.private:
            self.tree.pools[Tier.DEVICE].drop_owner(block)
        share.pinned, share.private, share.snapshots = [], set(), {}

    def use(self) -> CacheUse:
        """What its device blocks are used for."""
        device = self.tree.pools[Tier.DEVICE]
        reusable = self.tree.unpinned[Tier.DEVICE]
        return CacheUse(
            capacity=device.capacity,
            free=device.free,
            reusable=reusable,
            held=device.capacity - device.free - reusable,
            escrowed=self.ledger.reserved,
        )

    def tiers(self) -> tuple[TierFigures, ...]:
        """What each tier holds, and what became of its blocks."""
        tree, traffic = self.tree, self.tree.traffic
        return tuple(
            TierFigures(
                pool.capacity,
                pool.capacity - pool.free,
                traffic.offloaded[tier],
                traffic.onboarded[tier],
                traffic.evicted[tier],
                traffic.lost[tier],
                off=tier == Tier.DISK and tree.disk_failed,
            )
            for tier, pool in zip(Tier, tree.pools, strict=True)
        )


def pin_cost(node: Node | None) -> int | None:
    """Device blocks of room that pinning an attached block takes; None if there is no block."""
    if node is None:
        return None
    return int(node.tier == Tier.DEVICE and (not node.pins or _would_be_lent(node)))


def _room_without(pinned: Sequence[Node]) -> int:
    """How many of these blocks on the device have no other holder, or none but who counts on them as room."""
    return sum(
        node.tier == Tier.DEVICE and (node.pins == 1 or (node.pins == 2 and node.owner is not None))
        for node in pinned
    )


def _would_be_lent(node: Node) -> bool:
    return node.pins == 1 and node.owner is not None

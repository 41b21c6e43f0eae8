"""The reusable blocks of one window of one rank: which there are, where each is, and who holds it.

In a full-attention window they form a prefix tree. Whoever pins a block pins all before it, a block is
attached only below its attached parent, and going down a prefix the tiers never get faster: a device part,
then a host part, then a disk part. So every unpinned block can be reclaimed, all of them count alike, and
*present* is monotone along a prefix. The other windows are flat: blocks without parents, in no order of
tiers.

Not thread-safe: the owner of the rank's mutex calls.
"""

from __future__ import annotations

from collections.abc import Sequence

from wavepp_worker.cache.hint_index import HintIndex
from wavepp_worker.cache.moves import Copy, Tier
from wavepp_worker.cache.node import Node
from wavepp_worker.cache.pool import BlockPool
from wavepp_worker.cache.results import CacheDelta, StoredBlock
from wavepp_worker.cache.revisits import Revisits
from wavepp_worker.cache.traffic import TierTraffic
from wavepp_worker.cache.victims import VictimQueue

DEVICE, DISK = Tier.DEVICE, Tier.DISK


class BlockTree:
    """Blocks by their keys. Says where they are; ``TierAllocator`` says where they go.

    Args:
        window: index of the window in the rank, for moves and the index.
        blocks: how many there are on the device, in host memory and on disk.
        index: told of every block attached and detached.

    Attributes:
        nodes: every attached block by key.
        pools: the slots of each tier.
        lent: blocks that are held by whoever counts on them as room, and by others as well: room less for as long.
        unpinned: how many attached blocks of each tier nobody holds; all of them can be reclaimed.
        copies: blocks above the disk with a copy there as well, oldest copy first.
        victims: the order in which each tier gives its blocks up.
        clock: counts uses, for that order.
        traffic: counts what became of blocks.
        disk_failed: whether ``lose_disk`` was called.
    """

    def __init__(self, window: int, blocks: tuple[int, int, int], index: HintIndex) -> None:
        self.window = window
        self.nodes: dict[bytes, Node] = {}
        self.pools = tuple(BlockPool(capacity) for capacity in blocks)
        self.unpinned = [0, 0, 0]
        self.lent = 0
        self.copies: dict[Node, None] = {}
        self.revisits = Revisits()
        self.victims = tuple(
            VictimQueue(tier, pool.capacity, self.revisits)
            for tier, pool in zip(Tier, self.pools, strict=True)
        )
        self.clock = 0
        self.traffic = TierTraffic()
        self.disk_failed = False
        self._index = index
        self._changed: dict[bytes, Tier | None] = {}

    def room(self, tier: Tier) -> int:
        """Slots of a tier that are free or can be reclaimed."""
        second_copies = len(self.copies) if tier == DISK else 0
        return self.pools[tier].free + self.unpinned[tier] + second_copies

    def match(self, keys: Sequence[bytes], limit: int) -> int:
        """How many of the first ``limit`` keys are attached, in a prefix tree: O(log n) probes."""
        nodes, low, step = self.nodes, 0, 1
        while low < limit:
            probe = min(low + step, limit)
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

    def pin(self, nodes: Sequence[Node]) -> None:
        """Hold blocks, whole prefixes in a prefix tree."""
        unpinned = self.unpinned
        for node in nodes:
            if not node.pins:
                unpinned[node.tier] -= 1
            elif node.pins == 1 and node.owner is not None:
                self.lent += 1
            node.pins += 1
        self.revisits.reused(nodes)

    def unpin(self, nodes: Sequence[Node]) -> None:
        """Let go of blocks of one prefix, given in its order, and mark them as just used."""
        self.clock = clock = self.clock + 1
        unpinned = self.unpinned
        for node in reversed(nodes):
            node.pins -= 1
            node.last_used = clock
            if node.pins == 1 and node.owner is not None:
                self.lent -= 1
            if not node.pins:
                if not node.attached:
                    self.pools[node.tier].drop_owner(node.slot)
                    continue
                unpinned[node.tier] += 1
                if not node.peers:
                    self.victims[node.tier].offer(node)

    def attach(self, key: bytes, parent: Node | None, depth: int, tier: Tier, slot: int, held: bool) -> Node:
        """Make a block reusable that is not attached yet; in ``slot``, held by the caller or by nobody."""
        node = Node(key, parent, depth, tier, slot)
        self.clock += 1
        node.last_used = self.clock
        self.nodes[key] = node
        if parent is not None:
            parent.children[node] = None
            node.origin = parent if parent.reused else parent.origin
            if parent.tier == tier:
                parent.peers += 1
        if held:
            node.pins = 1
        else:
            self.unpinned[tier] += 1
            self.victims[tier].offer(node)
        self._index.add(self.window, key)
        self._note_change(key, None)
        return node

    def own(self, node: Node, owner: object) -> None:
        """Whoever holds a block alone counts on it as room once it lets go of it."""
        node.owner = owner

    def disown(self, node: Node) -> None:
        """Its owner is about to let go of a block."""
        if node.pins > 1:
            self.lent -= 1
        node.owner = None

    def set_apart(self, key: bytes, depth: int, slot: int) -> Node:
        """A block in device block ``slot`` for those who hold it, and nobody else; held by the caller."""
        node = Node(key, None, depth, DEVICE, slot)
        node.attached = False
        node.pins = 1
        return node

    def adopt(self, node: Node, slot: int) -> None:
        """Let an attached block live in device block ``slot``, which holds its content; frees its old one."""
        if node.tier == DEVICE:
            self.pools[DEVICE].drop_owner(node.slot)
            node.slot = slot
        else:
            self.relocate(node, DEVICE, slot)

    def relocate(self, node: Node, tier: Tier, slot: int) -> None:
        """Book a block on another tier. Leaving the disk keeps the copy there, reaching it uses it again."""
        left = node.tier
        if node.attached:
            self._note_change(node.key, left)
        if left == DISK:
            self.note_copy(node, node.slot)
        else:
            self.pools[left].drop_owner(node.slot)
        if tier == DISK and node.disk_copy >= 0:
            node.disk_copy = -1
            del self.copies[node]
        node.tier, node.slot = tier, slot
        node.peers = sum(child.tier == tier for child in node.children)
        if not node.pins:
            self.unpinned[left] -= 1
            self.unpinned[tier] += 1
            if not node.peers:
                self.victims[tier].offer(node)
        if node.parent is not None:
            self._lose_peer(node.parent, left)
            if node.parent.tier == tier:
                node.parent.peers += 1

    def detach(self, node: Node) -> list[Node]:
        """Take a block and all below it out of the tree; returns those that someone holds.

        What nobody holds is free at once, the rest when its last holder lets go of it.
        """
        self.revisits.evicted(node)
        return self._detach(node, self.traffic.evicted)

    def lose(self, copy: Copy) -> list[Node]:
        """A copy has no good bytes: forget it, and if it is the block itself, all that follows it.

        Returns those of the forgotten blocks that someone holds.
        """
        node = self.nodes.get(copy.key)
        if node is not None and (node.tier, node.slot) == (copy.tier, copy.slot):
            return self._detach(node, self.traffic.lost)
        if node is not None and (DISK, node.disk_copy) == (copy.tier, copy.slot):
            self.drop_copy(node)
        return []

    def lose_disk(self) -> None:
        """No slot on disk has good bytes: forget all copies, and all blocks there that nobody holds."""
        self.disk_failed = True
        for node in list(self.copies):
            self.drop_copy(node)
        for node in list(self.nodes.values()):
            if node.attached and node.tier == DISK and not node.pins:
                self._detach(node, self.traffic.lost)

    def clear(self) -> tuple[int, int, int]:
        """Forget all blocks that nobody holds, and all copies; returns how many blocks there were on each tier."""
        forgotten = [0, 0, 0]
        for node in list(self.copies):
            self.drop_copy(node)
        for node in list(self.nodes.values()):
            if node.attached and not node.pins:
                self._detach(node, forgotten)
        device, host, disk = forgotten
        return device, host, disk

    def on_disk(self) -> list[Copy]:
        """Every attached block whose bytes are on disk, and every second copy there."""
        blocks = (node for node in self.nodes.values() if node.tier == DISK)
        copies = [Copy(self.window, node.key, DISK, node.disk_copy) for node in self.copies]
        return [*(Copy(self.window, node.key, DISK, node.slot) for node in blocks), *copies]

    def drop_copy(self, node: Node) -> None:
        """Free the second copy a block has on disk."""
        self.pools[DISK].drop_owner(node.disk_copy)
        node.disk_copy = -1
        del self.copies[node]

    def note_copy(self, node: Node, slot: int) -> None:
        """A block above the disk has a valid copy in disk block ``slot``, taken by the caller."""
        node.disk_copy = slot
        self.copies[node] = None

    def take_changes(self) -> CacheDelta:
        """What came, went, and moved to another tier since the last call."""
        changed, self._changed = self._changed, {}
        nodes = self.nodes
        delta = CacheDelta([], [], [])
        for key, before in changed.items():
            node = nodes.get(key)
            if node is None:
                if before is not None:
                    delta.removed.append(key)
            elif before is None:
                delta.stored.append(StoredBlock(key, node.parent.key if node.parent else None, node.tier))
            elif before != node.tier:
                delta.moved.append((key, node.tier))
        return delta

    def _detach(self, node: Node, counts: list[int]) -> list[Node]:
        subtree = [node]
        for member in subtree:
            subtree.extend(member.children)
        for member in reversed(subtree):
            counts[member.tier] += 1
            self._remove(member)
        return [member for member in subtree if member.pins]

    def _remove(self, node: Node) -> None:
        node.attached = False
        del self.nodes[node.key]
        self._index.remove(self.window, node.key)
        self._note_change(node.key, node.tier)
        if node.disk_copy >= 0:
            self.drop_copy(node)
        if not node.pins:
            self.unpinned[node.tier] -= 1
            self.pools[node.tier].drop_owner(node.slot)
        if node.parent is not None:
            del node.parent.children[node]
            self._lose_peer(node.parent, node.tier)
            node.parent = None

    def _lose_peer(self, parent: Node, tier: Tier) -> None:
        if parent.tier == tier:
            parent.peers -= 1
            if not parent.peers and not parent.pins:
                self.victims[tier].offer(parent)

    def _note_change(self, key: bytes, before: Tier | None) -> None:
        """``before``: the tier it was on until now; None if it was not reusable."""
        before = self._changed.pop(key, before)
        self._changed[key] = before

"""The reusable blocks of one window of one rank, on three tiers.

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
from wavepp_worker.cache.moves import Move, Tier
from wavepp_worker.cache.node import Node
from wavepp_worker.cache.pool import BlockPool
from wavepp_worker.cache.victims import VictimQueue
from wavepp_worker.cache.window_spec import WindowSpec
from wavepp_worker.errors import AuditError

DEVICE, HOST, DISK = Tier.DEVICE, Tier.HOST, Tier.DISK


class TieredTree:
    """Blocks keyed by their chained hash.

    Args:
        window: index of the window in the rank, for moves and the index.
        spec: sizes of the tiers.
        index: told of every block attached and detached.

    Attributes:
        nodes: every attached block by key.
        pools: the slots of each tier.
        unpinned: how many attached blocks of each tier nobody holds; all of them can be reclaimed.
        copies: blocks above the disk with a copy there as well, oldest copy first.
        changed: keys that came or went since it was last emptied, with whether they were there before.
    """

    def __init__(self, window: int, spec: WindowSpec, index: HintIndex) -> None:
        self.window = window
        self.nodes: dict[int, Node] = {}
        self.pools = (BlockPool(spec.blocks), BlockPool(spec.host_blocks), BlockPool(spec.disk_blocks))
        self.unpinned = [0, 0, 0]
        self.copies: dict[Node, None] = {}
        self.changed: dict[int, bool] = {}
        self.victims = tuple(VictimQueue(tier) for tier in Tier)
        self.clock = 0
        self._index = index
        self._below_device = HOST if spec.host_blocks else DISK

    @property
    def available(self) -> int:
        """Device blocks that are free or can be reclaimed."""
        return self.pools[DEVICE].free + self.unpinned[DEVICE]

    @property
    def destinations(self) -> int:
        """Blocks below the device that are free or can be reclaimed: how many victims can be offloaded."""
        if self._below_device == DISK:
            return self._disk_room
        return self.pools[HOST].free + self.unpinned[HOST]

    @property
    def _disk_room(self) -> int:
        return self.pools[DISK].free + self.unpinned[DISK] + len(self.copies)

    def match(self, keys: Sequence[int], limit: int) -> int:
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
            node.pins += 1

    def unpin(self, nodes: Sequence[Node]) -> None:
        """Let go of blocks of one prefix, given in its order, and mark them as just used."""
        self.clock = clock = self.clock + 1
        unpinned = self.unpinned
        for node in reversed(nodes):
            node.pins -= 1
            node.last_used = clock
            if not node.pins:
                if not node.attached:
                    self.pools[node.tier].drop_owner(node.slot)
                    continue
                unpinned[node.tier] += 1
                if not node.peers:
                    self.victims[node.tier].offer(node)

    def attach(self, key: int, parent: Node | None, depth: int, tier: Tier, slot: int, held: bool) -> Node:
        """Make a block reusable that is not attached yet; in ``slot``, held by the caller or by nobody."""
        node = Node(key, parent, depth, tier, slot)
        self.clock += 1
        node.last_used = self.clock
        self.nodes[key] = node
        if parent is not None:
            parent.children[node] = None
            if parent.tier == tier:
                parent.peers += 1
        if held:
            node.pins = 1
        else:
            self.unpinned[tier] += 1
            self.victims[tier].offer(node)
        self._index.add(self.window, key)
        self._note_change(key, was_present=False)
        return node

    def adopt(self, node: Node, slot: int) -> None:
        """Let an attached block live in device block ``slot``, which holds its content; frees its old one."""
        if node.tier == DEVICE:
            self.pools[DEVICE].drop_owner(node.slot)
            node.slot = slot
        else:
            self._relocate(node, DEVICE, slot)

    def onboard(self, node: Node, slot: int, moves: list[Move]) -> None:
        """Bring a block up to device block ``slot``. A copy on disk stays valid."""
        moves.append(self._move(node, DEVICE, slot))
        self._relocate(node, DEVICE, slot)

    def allocate(self, count: int, destinations: int, moves: list[Move]) -> list[int]:
        """Take ``count`` device blocks, reclaiming what is not free in the tree's own order.

        Of the victims the latest ``destinations`` go one tier down; those before them go straight to disk as far
        as it has room, the rest lose their content.

        Args:
            moves: gets the copies to make first.

        Raises:
            ValueError: less is ``available``; the caller has to check.
        """
        pool = self.pools[DEVICE]
        if count > self.available:
            raise ValueError(f"asked for {count} blocks, {self.available} of {pool.capacity} are available")
        wanted = max(0, count - pool.free)
        keep = min(wanted, destinations)
        sink = min(wanted - keep, self._disk_room if self._below_device == HOST else 0)
        while pool.free < count - keep - sink:
            self.detach(self._victim(DEVICE))
        slots = self._make_room(self._below_device, keep, moves)
        while pool.free < count - keep:
            self._sink(self._victim(DEVICE), moves)
        for slot in slots:
            self._offload(self._victim(DEVICE), slot, moves)
        return pool.take(count)

    def detach(self, node: Node) -> list[Node]:
        """Take a block and all below it out of the tree; returns those that someone holds.

        What nobody holds is free at once, the rest when its last holder lets go of it.
        """
        subtree = [node]
        for member in subtree:
            subtree.extend(member.children)
        for member in reversed(subtree):
            self._remove(member)
        return [member for member in subtree if member.pins]

    def drop_copy(self, node: Node) -> None:
        """Free the second copy a block has on disk."""
        self.pools[DISK].drop_owner(node.disk_copy)
        node.disk_copy = -1
        del self.copies[node]

    def note_copy(self, node: Node, slot: int) -> None:
        """A block above the disk has a valid copy in disk block ``slot``, taken by the caller."""
        node.disk_copy = slot
        self.copies[node] = None

    def _victim(self, tier: Tier) -> Node:
        node = self.victims[tier].take()
        if node is None:
            raise AuditError(
                f"window {self.window} counts {self.unpinned[tier]} victims on {tier.name}, none found"
            )
        return node

    def _offload(self, node: Node, slot: int, moves: list[Move]) -> None:
        """Free the device block of a victim, whose content goes to ``slot`` of the next tier."""
        if self._below_device == DISK and node.disk_copy >= 0:
            self.pools[DISK].drop_owner(slot)
            self._relocate(node, DISK, node.disk_copy)
        else:
            moves.append(self._move(node, self._below_device, slot))
            self._relocate(node, self._below_device, slot)

    def _sink(self, node: Node, moves: list[Move]) -> None:
        """Free the device block of a victim, passing the host by: what follows it there goes to disk first."""
        followed = [node]
        for member in followed:
            followed.extend(child for child in member.children if child.tier == HOST)
        for member in reversed(followed):
            if member.attached:
                self._spill(member, moves)

    def _make_room(self, tier: Tier, count: int, moves: list[Move]) -> list[int]:
        """Take ``count`` blocks of a lower tier, all of which its own victims can provide."""
        pool = self.pools[tier]
        while pool.free < count:
            if tier == HOST:
                self._spill(self._victim(HOST), moves)
            elif not self._free_disk_slot():
                raise AuditError(f"window {self.window} has no room for {count} blocks on disk")
        return pool.take(count)

    def _spill(self, node: Node, moves: list[Move]) -> None:
        """Send a block to disk, whose followers are there already; without room its content is lost."""
        if node.disk_copy >= 0:
            self._relocate(node, DISK, node.disk_copy)
        elif self.pools[DISK].free or self._free_disk_slot():
            slot = self.pools[DISK].take(1)[0]
            moves.append(self._move(node, DISK, slot))
            self._relocate(node, DISK, slot)
        else:
            self.detach(node)

    def _free_disk_slot(self) -> bool:
        """Free a disk block: a second copy if there is one, else the disk's next victim."""
        if self.copies:
            self.drop_copy(next(iter(self.copies)))
            return True
        node = self.victims[DISK].take()
        if node is not None:
            self.detach(node)
        return node is not None

    def _move(self, node: Node, tier: Tier, slot: int) -> Move:
        parent = node.parent.key if node.parent is not None else None
        return Move(self.window, node.key, parent, (node.tier, node.slot), (tier, slot))

    def _relocate(self, node: Node, tier: Tier, slot: int) -> None:
        """Book a block on another tier. Leaving the disk keeps the copy there, reaching it uses it again."""
        left = node.tier
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

    def _remove(self, node: Node) -> None:
        node.attached = False
        del self.nodes[node.key]
        self._index.remove(self.window, node.key)
        self._note_change(node.key, was_present=True)
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

    def _note_change(self, key: int, was_present: bool) -> None:
        before = self.changed.pop(key, was_present)
        self.changed[key] = before

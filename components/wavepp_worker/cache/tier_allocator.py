"""Takes device blocks of one window; what is reusable there goes down the tiers, or is lost, in order of use.

``allocate`` sends victims from the device to the tier below it (*offload*), past a full host straight to disk
(*sink*), and from the host to disk (*spill*); ``onboard`` brings a block up. Each copy that this takes is appended
to a list of moves, which the owner of the bytes executes in order.

Not thread-safe: the owner of the rank's mutex calls.
"""

from __future__ import annotations

from wavepp_worker.cache.moves import Move, Tier
from wavepp_worker.cache.node import Node
from wavepp_worker.cache.tree import BlockTree
from wavepp_worker.errors import AuditError

DEVICE, HOST, DISK = Tier.DEVICE, Tier.HOST, Tier.DISK


class TierAllocator:
    """The movement of a tree's blocks between tiers; the host is passed by if it has no blocks."""

    def __init__(self, tree: BlockTree) -> None:
        self._tree = tree
        self._below_device = HOST if tree.pools[HOST].capacity else DISK

    @property
    def destinations(self) -> int:
        """Room on the tier below the device: how many victims can be offloaded."""
        return self._tree.room(self._below_device)

    def allocate(self, count: int, destinations: int, moves: list[Move]) -> list[int]:
        """Take ``count`` device blocks, reclaiming what is not free in the tree's own order.

        What is ``spent`` loses its content. Of the other victims the latest ``destinations`` go one tier down; those
        before them go straight to disk as far as it has room, the rest lose their content.

        Args:
            moves: gets the copies to make first.

        Raises:
            ValueError: there is less room on the device; the caller has to check.
        """
        tree = self._tree
        pool, room = tree.pools[DEVICE], tree.room(DEVICE)
        if count > room:
            raise ValueError(f"asked for {count} blocks, of {pool.capacity} there is room for {room}")
        while pool.free < count and (spent := tree.victims[DEVICE].take_spent()) is not None:
            tree.detach(spent)
        wanted = max(0, count - pool.free)
        keep = min(wanted, destinations)
        sink = min(wanted - keep, tree.room(DISK) if self._below_device == HOST else 0)
        while pool.free < count - keep - sink:
            tree.detach(self._victim(DEVICE))
        slots = self._take_below(keep, moves)
        while pool.free < count - keep:
            self._sink(self._victim(DEVICE), moves)
        for slot in slots:
            self._offload(self._victim(DEVICE), slot, moves)
        return pool.take(count)

    def onboard(self, node: Node, slot: int, moves: list[Move]) -> None:
        """Bring a block up to device block ``slot``. A copy on disk stays valid."""
        self._tree.traffic.onboarded[node.tier] += 1
        moves.append(self._move(node, DEVICE, slot))
        self._tree.relocate(node, DEVICE, slot)

    def _offload(self, node: Node, slot: int, moves: list[Move]) -> None:
        """Free the device block of a victim, whose content goes to ``slot`` of the next tier."""
        if self._below_device == DISK and node.disk_copy >= 0:
            self._tree.pools[DISK].drop_owner(slot)
            self._send(node, DISK, node.disk_copy)
        else:
            moves.append(self._move(node, self._below_device, slot))
            self._send(node, self._below_device, slot)

    def _sink(self, node: Node, moves: list[Move]) -> None:
        """Free the device block of a victim, passing the host by: what follows it there goes to disk first."""
        followed = [node]
        for member in followed:
            followed.extend(child for child in member.children if child.tier == HOST)
        for member in reversed(followed):
            self._spill(member, moves)

    def _spill(self, node: Node, moves: list[Move]) -> None:
        """Send a block to disk, whose followers are there already; without room its content is lost."""
        if node.disk_copy >= 0:
            self._send(node, DISK, node.disk_copy)
        elif self._tree.pools[DISK].free or self._free_disk_slot():
            slot = self._tree.pools[DISK].take(1)[0]
            moves.append(self._move(node, DISK, slot))
            self._send(node, DISK, slot)
        else:
            self._tree.detach(node)

    def _send(self, node: Node, tier: Tier, slot: int) -> None:
        self._tree.traffic.offloaded[tier] += 1
        self._tree.relocate(node, tier, slot)

    def _take_below(self, count: int, moves: list[Move]) -> list[int]:
        """Take ``count`` slots of the tier below the device, all of which its own victims can provide."""
        pool = self._tree.pools[self._below_device]
        while pool.free < count:
            if self._below_device == HOST:
                self._spill(self._victim(HOST), moves)
            elif not self._free_disk_slot():
                raise AuditError(f"window {self._tree.window} has no room for {count} blocks on disk")
        return pool.take(count)

    def _free_disk_slot(self) -> bool:
        """Free a disk block: a second copy if there is one, else the disk's next victim."""
        tree = self._tree
        if tree.copies:
            tree.drop_copy(next(iter(tree.copies)))
            return True
        node = tree.victims[DISK].take()
        if node is not None:
            tree.detach(node)
        return node is not None

    def _victim(self, tier: Tier) -> Node:
        node = self._tree.victims[tier].take()
        if node is None:
            raise AuditError(
                f"window {self._tree.window} counts {self._tree.unpinned[tier]} victims on {tier.name}, "
                "none found"
            )
        return node

    def _move(self, node: Node, tier: Tier, slot: int) -> Move:
        parent = node.parent.key if node.parent is not None else None
        return Move(self._tree.window, node.key, parent, (node.tier, node.slot), (tier, slot))

"""One reusable block of one window, wherever its bytes are."""

from __future__ import annotations

from wavepp_worker.cache.moves import Tier


class Node:
    """A block others can reuse.

    Attributes:
        key: of the prefix that ends with the block, see ``block_keys``.
        parent: the block before it, None for a first block and in windows without parents.
        children: blocks attached below it, oldest first.
        depth: its index in the prefix.
        tier: where its bytes are.
        slot: its block on that tier.
        disk_copy: slot of a second, valid copy on disk while ``tier`` is above the disk; -1 for none.
        peers: how many children are on the same tier; a node with peers is no leaf of its tier.
        pins: how many leases and sequences hold it.
        last_used: clock of the tree when it was last let go of.
        attached: whether it is in the tree.
        owner: the share of the request that counts on the block as room, once its window has passed it; None if none
            does.
        passed: whether a window has passed it, and nobody is known to come back to it.
        reused: whether a request reused it since it is in the tree.
        origin: the last block before it that was reused when it was attached, where a request went on by itself; None
            if there was none.
        revisits: of those that went on from it, how many others came back to.
        deaths: of those, how many had to go before anybody did.
    """

    __slots__ = (
        "attached",
        "children",
        "deaths",
        "depth",
        "disk_copy",
        "key",
        "last_used",
        "origin",
        "owner",
        "parent",
        "passed",
        "peers",
        "pins",
        "reused",
        "revisits",
        "slot",
        "tier",
    )

    def __init__(self, key: bytes, parent: Node | None, depth: int, tier: Tier, slot: int) -> None:
        self.key = key
        self.parent = parent
        self.children: dict[Node, None] = {}
        self.depth = depth
        self.tier = tier
        self.slot = slot
        self.disk_copy = -1
        self.peers = 0
        self.pins = 0
        self.last_used = 0
        self.attached = True
        self.owner: object | None = None
        self.passed = False
        self.reused = False
        self.origin: Node | None = None
        self.revisits = 0
        self.deaths = 0

    @property
    def spent(self) -> bool:
        """Whether nobody is known to come back to it: not worth a place on a slower tier."""
        return self.passed and not self.reused

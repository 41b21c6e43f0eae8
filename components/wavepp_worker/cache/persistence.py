"""What of a window outlives the process: read back from disk at start, put there at an orderly stop."""

from __future__ import annotations

from collections.abc import Iterable

from wavepp_worker.cache.moves import Move, Tier
from wavepp_worker.cache.node import Node
from wavepp_worker.cache.tree import BlockTree


def restore_from_disk(tree: BlockTree, records: Iterable[tuple[bytes, bytes | None, int]]) -> None:
    """Attach the blocks of an earlier process to an empty tree; see ``RankCache.restore``.

    Slots that do not exist here, and keys or slots listed twice, are dropped like orphans.
    """
    if tree.nodes:
        raise ValueError(f"the cache holds {len(tree.nodes)} blocks; restore comes before the first request")
    capacity = tree.pools[Tier.DISK].capacity
    stored: dict[bytes, tuple[int, int]] = {}
    below: dict[bytes | None, list[bytes]] = {}
    slots: set[int] = set()
    for age, (key, parent, slot) in enumerate(records, start=1):
        if key not in stored and slot not in slots and 0 <= slot < capacity:
            stored[key] = (slot, age)
            slots.add(slot)
            below.setdefault(parent, []).append(key)
    reachable = list(below.get(None, []))
    # Grows while it is read: breadth first, so that parents come before their children.
    for key in reachable:
        reachable.extend(below.get(key, []))
    tree.pools[Tier.DISK].take_these(stored[key][0] for key in reachable)
    parents = {child: parent for parent, children in below.items() for child in children}
    nodes: list[Node] = []
    for key in reachable:
        above = parents[key]
        parent_node = tree.nodes[above] if above is not None else None
        depth = parent_node.depth + 1 if parent_node is not None else 0
        nodes.append(tree.attach(key, parent_node, depth, Tier.DISK, stored[key][0], held=False))
    for node in nodes:
        node.last_used = stored[node.key][1]
    for node in reversed(nodes):
        if node.parent is not None:
            node.parent.last_used = max(node.parent.last_used, node.last_used)
        if not node.peers:
            tree.victims[Tier.DISK].offer(node)


def flush_to_disk(tree: BlockTree) -> tuple[Move, ...]:
    """Give the blocks worth most a copy on disk; see ``RankCache.flush``.

    Worth most is what someone holds, then what was used last; a block is never worth more than its parent. What is
    ``spent`` is worth nothing.
    """
    disk = tree.pools[Tier.DISK]
    ranked = sorted((node for node in tree.nodes.values() if not node.spent), key=_worth)
    kept = set(ranked[: disk.capacity])
    missing = [node for node in ranked if node in kept and node.tier != Tier.DISK and node.disk_copy < 0]
    for node in reversed(ranked):
        if disk.free >= len(missing):
            break
        if node in kept or not node.attached:
            continue
        if node.disk_copy >= 0:
            tree.drop_copy(node)
        elif node.tier == Tier.DISK and not node.pins:
            tree.detach(node)
    moves = []
    for node, slot in zip(missing, disk.take(min(disk.free, len(missing))), strict=False):
        parent = node.parent.key if node.parent is not None else None
        moves.append(Move(tree.window, node.key, parent, (node.tier, node.slot), (Tier.DISK, slot)))
        tree.note_copy(node, slot)
    return tuple(moves)


def _worth(node: Node) -> tuple[bool, int, int]:
    return (not node.pins, 0 if node.pins else -node.last_used, node.depth)

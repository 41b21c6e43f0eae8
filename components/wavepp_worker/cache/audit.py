"""Recounts a rank's books from their sources and compares (promises 1, 3 and 6 of docs/design.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from wavepp_worker.cache.hint_index import HintIndex
from wavepp_worker.cache.moves import Tier
from wavepp_worker.cache.node import Node
from wavepp_worker.cache.reservations import Reservations
from wavepp_worker.cache.windows.share import Share
from wavepp_worker.cache.windows.window import Window
from wavepp_worker.errors import AuditError


def check_books(windows: Sequence[Window], index: HintIndex, reservations: Reservations) -> None:
    """Raise AuditError at the first thing that is not as it must be. Costs O(capacity)."""
    index.check()
    reservations.check()
    for number, window in enumerate(windows):
        shares = reservations.shares(number).values()
        try:
            _check_slots(window, shares)
            _check_pins(window, shares)
            _check_owners(window, shares)
            for node in window.tree.nodes.values():
                _check_node(window, node)
            _check_counts(window)
            _check_escrows(window)
            if index.counts(number) != dict.fromkeys(window.tree.nodes, 1):
                raise AuditError("the hint index does not hold exactly the attached blocks")
        except AuditError as error:
            raise AuditError(f"window {window.spec.name}: {error}") from error


def check_at_rest(windows: Sequence[Window], reservations: Reservations) -> None:
    """Raise AuditError if requests hold something, or blocks are neither free nor in the tree."""
    if reservations:
        names = ", ".join(sorted(reservations)[:8])
        raise AuditError(f"{len(reservations)} requests still hold blocks: {names}")
    for window in windows:
        if len(window.ledger):
            raise AuditError(f"window {window.spec.name}: {len(window.ledger)} escrows are left")
        at = Counter(node.tier for node in window.tree.nodes.values())
        at[Tier.DISK] += len(window.tree.copies)
        for tier, pool in zip(Tier, window.tree.pools, strict=True):
            if pool.free + at[tier] != pool.capacity:
                raise AuditError(
                    f"window {window.spec.name}: {pool.free} free + {at[tier]} in the tree != "
                    f"{pool.capacity} blocks of the {tier.name.lower()} tier"
                )


def _check_slots(window: Window, shares: Iterable[Share]) -> None:
    """Every slot in use is one of: a block's primary place, its disk copy, one request's private block."""
    owners: dict[Tier, Counter[int]] = {tier: Counter() for tier in Tier}
    nodes = set(window.tree.nodes.values())
    for share in shares:
        owners[Tier.DEVICE].update(share.private)
        nodes.update(share.pinned)
    for node in nodes:
        owners[node.tier][node.slot] += 1
        if node.disk_copy >= 0:
            owners[Tier.DISK][node.disk_copy] += 1
    for tier, pool in zip(Tier, window.tree.pools, strict=True):
        pool.check()
        if sorted(owners[tier].elements()) != pool.in_use():
            raise AuditError(
                f"{owners[tier].total()} blocks have an owner on the {tier.name.lower()} tier, "
                f"{pool.capacity - pool.free} are in use, or one has several owners"
            )


def _check_pins(window: Window, shares: Iterable[Share]) -> None:
    holders = Counter(node for share in shares for node in share.pinned)
    for node in {*window.tree.nodes.values(), *holders}:
        if node.pins != holders[node]:
            raise AuditError(
                f"block {node.key.hex()} has {node.pins} pins, requests hold it {holders[node]} times"
            )
        if not node.attached and window.tree.nodes.get(node.key) is node:
            raise AuditError(f"block {node.key.hex()} is in the tree but says it is not")


def _check_owners(window: Window, shares: Iterable[Share]) -> None:
    held = {node for share in shares for node in share.pinned}
    lent = sum(node.owner is not None and node.pins > 1 for node in held)
    if lent != window.tree.lent:
        raise AuditError(f"{window.tree.lent} blocks counted as lent, {lent} found")
    owned = Counter(id(node.owner) for node in held if node.owner is not None)
    if sum(owned[id(share)] for share in shares) != owned.total():
        raise AuditError("a block is counted on as room by a request that is gone")
    if any(node.owner is not None for node in window.tree.nodes.values() if not node.pins):
        raise AuditError("a block that nobody holds is counted on as room")


def _check_node(window: Window, node: Node) -> None:
    nodes, parent = window.tree.nodes, node.parent
    if nodes.get(node.key) is not node or not node.attached:
        raise AuditError(f"block {node.key.hex()} is filed under another key")
    if (parent is not None or node.children) and not window.prefix_tree:
        raise AuditError(f"block {node.key.hex()} has relatives in a window without parents")
    if parent is not None:
        if nodes.get(parent.key) is not parent or node not in parent.children:
            raise AuditError(
                f"block {node.key.hex()} is attached below a block that is not its attached parent"
            )
        if node.pins and not parent.pins:
            raise AuditError(f"block {node.key.hex()} is held but the block before it is not")
        if not parent.pins and node.last_used > parent.last_used:
            raise AuditError(f"block {node.key.hex()} was used after the block before it")
        if node.tier < parent.tier:
            raise AuditError(f"block {node.key.hex()} is on a faster tier than the block before it")
    if node.peers != sum(child.tier == node.tier for child in node.children):
        raise AuditError(f"block {node.key.hex()} counts {node.peers} children on its tier wrongly")
    if (node.disk_copy >= 0) != (node in window.tree.copies):
        raise AuditError(f"block {node.key.hex()} and the list of disk copies disagree")


def _check_counts(window: Window) -> None:
    tree = window.tree
    for tier in Tier:
        unpinned = [node for node in tree.nodes.values() if node.tier == tier and not node.pins]
        if len(unpinned) != tree.unpinned[tier]:
            raise AuditError(
                f"{tree.unpinned[tier]} reclaimable {tier.name} blocks counted, {len(unpinned)} found"
            )
        lost = tree.victims[tier].missing(node for node in unpinned if not node.peers)
        if lost:
            raise AuditError(f"{len(lost)} {tier.name} blocks would never be chosen as victims")


def _check_escrows(window: Window) -> None:
    ledger = window.ledger
    ledger.check()
    room, destinations = window.room, window.allocator.destinations
    if ledger.promised > room:
        raise AuditError(f"{ledger.promised} blocks are committed, there is room for {room}")
    if ledger.destinations > destinations:
        raise AuditError(f"{ledger.destinations} destinations are reserved, there are {destinations}")

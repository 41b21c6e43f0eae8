"""One rank's cache as the runtime sees it: match, admit, publish, release; and proof that nothing leaked."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from wavepp_worker.cache.pool import BlockPool
from wavepp_worker.cache.tree import Node, PrefixTree
from wavepp_worker.errors import AuditError


@dataclass
class Holding:
    """What one admitted request holds.

    Attributes:
        keys: chained hashes of its full blocks.
        table: physical block of each logical block, reused ones first.
        pinned: tree nodes of ``keys[: len(pinned)]``; reused ones, then those it published itself.
        own: physical blocks it allocated; the rest of ``table`` belongs to the tree.
    """

    keys: Sequence[int]
    table: list[int]
    pinned: list[Node]
    own: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class StoredBlock:
    """A block that became reusable on this rank."""

    key: int
    parent: int | None


@dataclass(frozen=True)
class CacheUse:
    """Blocks by owner at one instant; ``free + reusable + held == capacity``."""

    capacity: int
    free: int
    reusable: int
    held: int


class RankCache:
    """The block pool and prefix tree of one rank under one mutex. Every method is thread-safe."""

    def __init__(self, capacity: int, block: int) -> None:
        self.block = block
        self.capacity = capacity
        self._mutex = threading.Lock()
        self._pool = BlockPool(capacity)
        self._tree = PrefixTree(self._pool)
        self._holdings: dict[str, Holding] = {}

    def match(self, keys: Sequence[int], prompt_tokens: int) -> int:
        """How many leading blocks of a prompt are reusable here.

        At least the last token is left to compute, because its logits are what a prefill answers.
        """
        with self._mutex:
            return self._tree.match(keys[: (prompt_tokens - 1) // self.block])

    def admit(self, wanted: Sequence[tuple[str, Sequence[int], int, int]]) -> list[list[int]]:
        """Pin the agreed prefixes and allocate the rest, first come first served (paper, section 4.1).

        All prefixes are pinned before any block is evicted, so that no request evicts what an earlier or
        later one is about to reuse. Where room runs out, the pins of the last requests give way first.

        Args:
            wanted: ``(request id, keys, blocks to reuse, prompt tokens)`` in arrival order.

        Returns:
            The block tables of the leading requests that could be admitted; the others hold nothing.
        """
        with self._mutex:
            prefixes: list[list[Node]] = []
            for request_id, keys, reuse, _ in wanted:
                if request_id in self._holdings:
                    raise ValueError(f"request {request_id} is admitted already")
                if self._tree.match(keys[:reuse]) < reuse:
                    break
                prefixes.append(self._tree.pin(keys[:reuse]))
            tables: list[list[int]] = []
            while len(tables) < len(prefixes):
                request_id, keys, reuse, prompt_tokens = wanted[len(tables)]
                own = self._allocate(-(-prompt_tokens // self.block) - reuse)
                if own is not None:
                    pinned = prefixes[len(tables)]
                    table = [node.block for node in pinned] + own
                    self._holdings[request_id] = Holding(keys, table, pinned, own)
                    tables.append(table)
                else:
                    self._tree.unpin(prefixes.pop())
            return tables

    def publish(self, request_id: str, computed: int) -> None:
        """Attach the request's full blocks among its first ``computed`` tokens, so others can reuse them."""
        with self._mutex:
            holding = self._holdings[request_id]
            for index in range(len(holding.pinned), min(computed // self.block, len(holding.keys))):
                parent = holding.pinned[-1] if holding.pinned else None
                holding.pinned.append(self._tree.attach(holding.keys[index], parent, holding.table[index]))

    def release(self, request_id: str) -> bool:
        """Give back all a request holds; its published blocks stay reusable. False if it holds nothing."""
        with self._mutex:
            holding = self._holdings.pop(request_id, None)
            if holding is None:
                return False
            self._tree.unpin(holding.pinned)
            for block in holding.own:
                self._pool.drop_owner(block)
            return True

    def take_changes(self) -> tuple[list[StoredBlock], list[int]]:
        """Blocks that became reusable (parents first) or stopped being so (leaves first) since last asked."""
        with self._mutex:
            attached, detached = self._tree.take_changes()
            stored = [StoredBlock(node.key, node.parent.key if node.parent else None) for node in attached]
            return stored, detached

    def use(self) -> CacheUse:
        with self._mutex:
            reusable = self._tree.evictable
            held = self.capacity - self._pool.free - reusable
            return CacheUse(self.capacity, self._pool.free, reusable, held)

    def check(self) -> None:
        """Raise AuditError unless every block's owners are exactly tree, pins and holdings (promise 1)."""
        with self._mutex:
            self._pool.check()
            self._tree.check()
            expected = [0] * self.capacity
            for node in self._tree.nodes():
                expected[node.block] += 1
            pins: dict[int, int] = {}
            for holding in self._holdings.values():
                for block in holding.own:
                    expected[block] += 1
                for node in holding.pinned:
                    expected[node.block] += 1
                    pins[node.key] = pins.get(node.key, 0) + 1
            for node in self._tree.nodes():
                held = pins.get(node.key, 0)
                if node.pins != held:
                    raise AuditError(f"block {node.block} has {node.pins} pins, requests hold {held}")
            for block, owners in enumerate(expected):
                if self._pool.owners(block) != owners:
                    raise AuditError(
                        f"block {block} has {self._pool.owners(block)} owners, "
                        f"tree and requests account for {owners}"
                    )

    def audit(self) -> CacheUse:
        """Raise AuditError unless the books balance and nothing is held: ``free + tree == capacity``."""
        self.check()
        with self._mutex:
            if self._holdings:
                names = ", ".join(sorted(self._holdings)[:8])
                raise AuditError(f"{len(self._holdings)} requests still hold blocks: {names}")
            if self._pool.free + len(self._tree) != self.capacity:
                raise AuditError(
                    f"{self._pool.free} free + {len(self._tree)} in the tree != {self.capacity} blocks"
                )
        return self.use()

    def _allocate(self, count: int) -> list[int] | None:
        if count > self._pool.free + self._tree.evictable:
            return None
        self._tree.evict(count - self._pool.free)
        return self._pool.take(count)

"""One rank's cache as the runtime sees it: from the hint to the release, for all windows at once.

Bookkeeping only. Copies between tiers are returned as moves; one thread of the owner executes all of them in
order.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from wavepp_worker.cache.audit import check_at_rest, check_rank
from wavepp_worker.cache.hint_index import HintIndex
from wavepp_worker.cache.lookup import agree
from wavepp_worker.cache.moves import Copy, Move, Tier
from wavepp_worker.cache.persistence import flush_to_disk, restore_from_disk
from wavepp_worker.cache.results import CacheUse, Holds, Materialised, Prepared, StoredBlock
from wavepp_worker.cache.window import Share, Window
from wavepp_worker.cache.window_spec import WindowSpec
from wavepp_worker.errors import ConfigError


@dataclass
class Record:
    """One request that holds something; ``end`` is its endpoint in blocks."""

    keys: Sequence[int]
    prompt_tokens: int
    end: int
    shares: list[Share]
    state: Holds = "lease"


class RankCache:
    """The windows of one rank under one mutex. Every method is thread-safe.

    A request goes ``nothing -> lease -> escrow -> committed -> sequence`` and from anywhere back to nothing
    by ``release``. Endpoints are in tokens, multiples of ``block``. Methods that need a request in another
    state than it is in raise ValueError.

    Args:
        windows: window 0 is the one whose changes and use are reported. A rank without any keeps nothing: it
            can resume anywhere and always has room.
        block: tokens per block.

    Raises:
        ConfigError: a window cannot work.
    """

    def __init__(self, windows: Sequence[WindowSpec], block: int) -> None:
        if block < 1:
            raise ConfigError(f"a cache of blocks of {block} tokens; give at least 1")
        for spec in windows:
            spec.validate(block)
        self.block = block
        self._mutex = threading.Lock()
        self._index = HintIndex(len(windows))
        self._windows = [Window(number, spec, block, self._index) for number, spec in enumerate(windows)]
        self._records: dict[str, Record] = {}

    def hint(self, keys: Sequence[int], prompt_tokens: int) -> int:
        """Tokens that are probably reusable. Reads the index only: owns nothing, never waits for the mutex.

        The last token is always left to compute, because its logits are what a prefill answers.
        """
        limit = self._limit(keys, prompt_tokens, prompt_tokens)
        return self.block * agree([partial(window.hint, keys) for window in self._windows], limit)

    def match(self, keys: Sequence[int], prompt_tokens: int) -> int:
        """Tokens that are reusable now, by the authoritative walk; pins nothing."""
        with self._mutex:
            return self.block * self._walk("", keys, self._limit(keys, prompt_tokens, prompt_tokens))

    def lease(self, request_id: str, keys: Sequence[int], prompt_tokens: int, candidate: int) -> int:
        """Pin what resuming needs, at the largest usable endpoint not above ``candidate``; returns it.

        Blocks that are committed to others as room are not pinned: the endpoint is lower instead.
        """
        with self._mutex:
            return self._lease(request_id, keys, prompt_tokens, candidate).end * self.block

    def reserve(self, request_id: str, floor: int = 0) -> bool:
        """Reserve the room after the lease's endpoint, leaving ``floor`` blocks of tokens in each window.

        False if it is not there; the lease remains.
        """
        with self._mutex:
            return self._reserve(request_id, self._in_state(request_id, "lease"), floor)

    def commit(self, request_id: str, endpoint: int) -> Prepared:
        """Fix a request at ``endpoint``, at or below its lease's.

        If the endpoint is not usable, the lease goes down to the largest one that is, uncommitted. If it is
        usable but the room is not there, everything stays as it was. Otherwise the room cannot be taken away
        any more.
        """
        with self._mutex:
            return self._commit(request_id, endpoint)

    def prepare(
        self, request_id: str, keys: Sequence[int], prompt_tokens: int, candidate: int, floor: int = 0
    ) -> Prepared | None:
        """Lease and reserve, and commit at once if the lease keeps the candidate.

        None if the room is not there; nothing is held then.
        """
        with self._mutex:
            record = self._lease(request_id, keys, prompt_tokens, candidate)
            endpoint = record.end * self.block
            if not self._reserve(request_id, record, floor):
                self._release(request_id)
                return None
            if endpoint != candidate:
                return Prepared(endpoint, False)
            return self._commit(request_id, endpoint)

    def materialise(self, request_id: str) -> Materialised:
        """Allocate a request's blocks; its sequence holds them and the leased prefix from then on.

        Cannot fail for want of room once committed. An escrow that was only reserved is committed first;
        ValueError if claims of others have taken its room.
        """
        with self._mutex:
            record = self._in_state(request_id, "escrow", "committed")
            if record.state == "escrow" and not self._commit(request_id, record.end * self.block).committed:
                raise ValueError(
                    f"request {request_id} has not been committed and its room is gone; commit first"
                )
            moves: list[Move] = []
            claimed = []
            for window, share in zip(self._windows, record.shares, strict=True):
                claimed.append(window.materialise(request_id, share, record.end, record.prompt_tokens, moves))
                window.ledger.drop(request_id)
            record.state = "sequence"
            return Materialised(
                tables=tuple(part.table for part in claimed),
                moves=tuple(moves),
                resume=tuple(part.resume for part in claimed),
                states=tuple(part.state for part in claimed),
                snapshots=tuple(part.snapshots for part in claimed),
            )

    def publish(self, request_id: str, computed: int) -> None:
        """Make a sequence's full blocks and snapshots among its first ``computed`` tokens reusable."""
        with self._mutex:
            record = self._in_state(request_id, "sequence")
            for window, share in zip(self._windows, record.shares, strict=True):
                window.publish(share, record.keys, computed)

    def release(self, request_id: str) -> bool:
        """Give back all a request holds, in any state; False if that is nothing. What it published stays."""
        with self._mutex:
            return self._release(request_id)

    def on_disk(self, request_id: str) -> tuple[Copy, ...]:
        """The blocks a request holds whose bytes are on disk only."""
        with self._mutex:
            record = self._records.get(request_id)
            shares = record.shares if record is not None else []
            return tuple(
                Copy(number, node.key, node.tier, node.slot)
                for number, share in enumerate(shares)
                for node in self._windows[number].below_device(share)
                if node.tier == Tier.DISK
            )

    def lose(self, copies: Iterable[Copy]) -> tuple[str, ...]:
        """These copies have no good bytes: forget their blocks and all that follow them.

        Returns:
            The requests that hold one of them. They cannot run and have to be released.
        """
        with self._mutex:
            held = set()
            for copy in copies:
                tree = self._windows[copy.window].tree
                node = tree.nodes.get(copy.key)
                if node is not None and (node.tier, node.slot) == (copy.tier, copy.slot):
                    held.update(tree.detach(node))
                elif node is not None and (Tier.DISK, node.disk_copy) == (copy.tier, copy.slot):
                    tree.drop_copy(node)
            return tuple(
                request_id
                for request_id, record in self._records.items()
                if any(not held.isdisjoint(share.pinned) for share in record.shares)
            )

    def holds(self, request_id: str) -> Holds:
        """What a request holds now."""
        with self._mutex:
            record = self._records.get(request_id)
            return "nothing" if record is None else record.state

    def room(self) -> float:
        """Tokens that ``prepare`` could reserve now beyond a candidate, at most; pinning may leave less.

        Counts windows of full attention; infinity if there are none.
        """
        with self._mutex:
            left = [window.tree.available - window.ledger.reserved for window in self._full_windows()]
            return min((self.block * blocks for blocks in left), default=math.inf)

    def take_changes(self) -> tuple[list[StoredBlock], list[int]]:
        """Blocks of window 0 that became reusable (parents first) or stopped being so (leaves first).

        Only net changes since the last call: a block that came and went, or went and came back, is in
        neither.
        """
        with self._mutex:
            if not self._windows:
                return [], []
            tree = self._windows[0].tree
            changed, tree.changed = tree.changed, {}
            nodes = tree.nodes
            attached = [nodes[key] for key, before in changed.items() if not before and key in nodes]
            stored = [StoredBlock(node.key, node.parent.key if node.parent else None) for node in attached]
            return stored, [key for key, before in changed.items() if before and key not in nodes]

    def use(self) -> CacheUse:
        """Where the blocks of window 0 are."""
        with self._mutex:
            if not self._windows:
                return CacheUse(0, 0, 0, 0, 0, 0, 0)
            window = self._windows[0]
            device, host, disk = window.tree.pools
            reusable = window.tree.unpinned[Tier.DEVICE]
            return CacheUse(
                capacity=device.capacity,
                free=device.free,
                reusable=reusable,
                held=device.capacity - device.free - reusable,
                escrowed=window.ledger.reserved,
                host_used=host.capacity - host.free,
                disk_used=disk.capacity - disk.free,
            )

    def restore(self, records: Iterable[tuple[int, int | None, int]]) -> None:
        """At start: take over what the full window's disk tier holds.

        Args:
            records: ``(key, parent key or None, disk slot)``, least recently used first. A block whose parent
                is not there is dropped, its slot free.
        """
        with self._mutex:
            for window in self._full_windows():
                restore_from_disk(window.tree, records)

    def flush(self) -> tuple[Move, ...]:
        """At an orderly stop: copies that put the full window's latest used blocks on disk, parents first."""
        with self._mutex:
            return tuple(move for window in self._full_windows() for move in flush_to_disk(window.tree))

    def check(self) -> None:
        """Raise AuditError unless the books balance: every block of every tier has exactly its owners."""
        with self._mutex:
            check_rank(self._windows, self._index, self._shares())

    def audit(self) -> CacheUse:
        """Raise AuditError unless the books balance and no request holds anything."""
        with self._mutex:
            check_rank(self._windows, self._index, self._shares())
            check_at_rest(self._windows, self._records)
        return self.use()

    def _limit(self, keys: Sequence[int], prompt_tokens: int, candidate: int) -> int:
        return max(0, min(min(candidate, prompt_tokens - 1) // self.block, len(keys)))

    def _shares(self) -> list[dict[str, Share]]:
        return [
            {request_id: record.shares[number] for request_id, record in self._records.items()}
            for number in range(len(self._windows))
        ]

    def _full_windows(self) -> list[Window]:
        """The window that is kept on disk over a restart: the first with full attention, if any."""
        return [window for window in self._windows if window.spec.kind == "full"][:1]

    def _in_state(self, request_id: str, *states: Holds) -> Record:
        record = self._records.get(request_id)
        if record is None or record.state not in states:
            held = "nothing" if record is None else record.state
            raise ValueError(f"request {request_id} holds {held}; this needs {' or '.join(states)}")
        return record

    def _walk(self, request_id: str, keys: Sequence[int], limit: int, record: Record | None = None) -> int:
        """The largest endpoint in blocks that all windows can resume at and pin.

        Args:
            record: the request's present lease, which frees blocks by going down.
        """
        usable = []
        for number, window in enumerate(self._windows):
            claims = window.claims(request_id)
            if record is not None:
                claims += window.freed_by_lowering(record.shares[number], limit)
            usable.append(partial(window.usable, keys, claims=claims))
        return agree(usable, limit)

    def _lease(self, request_id: str, keys: Sequence[int], prompt_tokens: int, candidate: int) -> Record:
        if request_id in self._records:
            raise ValueError(
                f"request {request_id} holds {self._records[request_id].state} already; release it first"
            )
        end = self._walk(request_id, keys, self._limit(keys, prompt_tokens, candidate))
        record = Record(keys, prompt_tokens, end, [window.lease(keys, end) for window in self._windows])
        self._records[request_id] = record
        self._settle()
        return record

    def _reserve(self, request_id: str, record: Record, floor: int) -> bool:
        demands = self._demands(record.shares, record.end, record.prompt_tokens)
        if not all(
            window.has_room(blocks, floor) for window, blocks in zip(self._windows, demands, strict=True)
        ):
            return False
        for window, blocks in zip(self._windows, demands, strict=True):
            window.reserve(request_id, blocks, committed=False)
        record.state = "escrow"
        return True

    def _commit(self, request_id: str, endpoint: int) -> Prepared:
        record = self._in_state(request_id, "lease", "escrow", "committed")
        end = min(record.end, endpoint // self.block)
        shares = record.shares
        if end < record.end:
            end = self._walk(request_id, record.keys, end, record)
            shares = [window.lease(record.keys, end) for window in self._windows]
        reached = Prepared(end * self.block, False)
        if reached.endpoint != endpoint:
            self._go_down(request_id, record, end, shares)
            return reached
        demands = self._demands(shares, end, record.prompt_tokens)
        for window, old, new, blocks in zip(self._windows, record.shares, shares, demands, strict=True):
            if not window.has_committed_room(request_id, blocks, None if old is new else old):
                self._unpin(shares, unless=record.shares)
                return reached
        self._go_down(request_id, record, end, shares)
        for window, blocks in zip(self._windows, demands, strict=True):
            window.reserve(request_id, blocks, committed=True)
        record.state = "committed"
        return Prepared(endpoint, True)

    def _go_down(self, request_id: str, record: Record, end: int, shares: list[Share]) -> None:
        """Let a request hold the shares of a lower endpoint, pinned already, instead of its present ones."""
        if shares is record.shares:
            return
        self._unpin(record.shares, unless=shares)
        record.end, record.shares = end, shares
        if record.state == "committed":
            for window in self._windows:
                window.reserve(request_id, window.ledger.get(request_id).blocks, committed=False)
            record.state = "escrow"
        self._settle()

    def _unpin(self, shares: list[Share], unless: list[Share]) -> None:
        if shares is not unless:
            for window, share in zip(self._windows, shares, strict=True):
                window.tree.unpin(share.pinned)

    def _settle(self) -> None:
        for window in self._windows:
            window.settle()

    def _demands(self, shares: list[Share], end: int, prompt_tokens: int) -> list[int]:
        return [
            window.demand(share, end, prompt_tokens)
            for window, share in zip(self._windows, shares, strict=True)
        ]

    def _release(self, request_id: str) -> bool:
        record = self._records.pop(request_id, None)
        if record is None:
            return False
        for window, share in zip(self._windows, record.shares, strict=True):
            window.release(request_id, share)
        return True

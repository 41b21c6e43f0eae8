"""One rank's cache as the runtime sees it: from the hint to the release, for all windows at once.

Bookkeeping only. Copies between tiers are returned as moves; one thread of the owner executes all of them in
order.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from wavepp_worker.cache.audit import check_at_rest, check_books
from wavepp_worker.cache.common_endpoint import common_endpoint
from wavepp_worker.cache.hint_index import HintIndex
from wavepp_worker.cache.moves import Copy, Move
from wavepp_worker.cache.persistence import flush_to_disk, restore_from_disk
from wavepp_worker.cache.reservations import Reservations
from wavepp_worker.cache.results import (
    Begun,
    CacheDelta,
    CacheUse,
    ClearedCache,
    EscrowSums,
    Holding,
    Holds,
    Materialised,
    Prepared,
    Standing,
    TierFigures,
)
from wavepp_worker.cache.window_spec import WindowSpec
from wavepp_worker.cache.windows.attention import AttentionWindow
from wavepp_worker.cache.windows.full import FullWindow
from wavepp_worker.cache.windows.kinds import make_window
from wavepp_worker.cache.windows.sliding import SlidingWindow
from wavepp_worker.cache.windows.window import Window
from wavepp_worker.errors import ConfigError


class RankCache:
    """The windows of one rank under one mutex. Every method is thread-safe.

    A request goes ``nothing -> lease -> escrow -> committed -> sequence`` and from anywhere back to nothing
    by ``release``. Endpoints are in tokens, multiples of ``block``. Methods that need a request in another
    state than it is in raise ValueError. *Room* is device blocks that are free or reusable and held by nobody.

    Args:
        windows: window 0 is the one whose changes and use are reported. A rank without any keeps nothing: it
            can resume anywhere and always has room.
        block_size: tokens per block.

    Attributes:
        begins: whether ``begin`` has to be called before each chunk of a sequence.
        leaves_snapshots: whether requests can resume only where an earlier one left a snapshot.
        slides: whether requests let go of blocks while they run.

    Raises:
        ConfigError: a window cannot work.
    """

    def __init__(self, windows: Sequence[WindowSpec], block_size: int) -> None:
        if block_size < 1:
            raise ConfigError(f"a cache of blocks of {block_size} tokens; give at least 1")
        self.block_size = block_size
        self._mutex = threading.Lock()
        self._index = HintIndex(len(windows))
        self._windows = [
            make_window(number, spec, block_size, self._index) for number, spec in enumerate(windows)
        ]
        self._reservations = Reservations(self._windows, block_size)
        self.begins = any(window.begins for window in self._windows)
        self.slides = any(isinstance(window, SlidingWindow) for window in self._windows)
        self.leaves_snapshots = any(window.leaves_snapshots for window in self._windows)

    def hint(self, keys: Sequence[bytes], prompt_tokens: int) -> int:
        """Tokens that are probably reusable. Reads the index only: owns nothing, never waits for the mutex.

        The last token is always left to compute, because its logits are what a prefill answers.
        """
        limit = self._limit(keys, prompt_tokens, prompt_tokens)
        return self.block_size * common_endpoint(
            [partial(window.hint, keys) for window in self._windows], limit
        )

    def match(self, keys: Sequence[bytes], prompt_tokens: int) -> int:
        """Tokens that are reusable now, by the authoritative walk; pins nothing."""
        limit = self._limit(keys, prompt_tokens, prompt_tokens)
        with self._mutex:
            return self.block_size * self._reservations.usable(keys, limit)

    def unreserved_tokens(self) -> float:
        """Tokens that ``prepare`` could reserve now beyond a candidate, at most; pinning may leave less.

        Counts windows of full attention; infinity if there are none.
        """
        with self._mutex:
            unreserved = [window.unreserved for window in self._prefix_trees()]
        return min((self.block_size * blocks for blocks in unreserved), default=math.inf)

    def free_tokens(self) -> float:
        """Tokens that ``prepare`` could reserve now without that anything reusable has to go.

        Counts windows of full attention; infinity if there are none.
        """
        with self._mutex:
            free = [window.free for window in self._prefix_trees()]
        return min((self.block_size * blocks for blocks in free), default=math.inf)

    def standing(self, keys: Sequence[bytes], prompt_tokens: int) -> Standing:
        """How much of a prompt is reusable, and how much of that is held. Looks at windows of full attention."""
        limit = self._limit(keys, prompt_tokens, prompt_tokens)
        with self._mutex:
            blocks = [window.standing(keys, limit) for window in self._prefix_trees()]
        present, held = blocks[0] if blocks else (0, 0)
        return Standing(self.block_size * present, self.block_size * held)

    def use(self) -> CacheUse:
        """What the device blocks of window 0 are used for."""
        with self._mutex:
            return self._windows[0].use() if self._windows else CacheUse(0, 0, 0, 0, 0)

    def attached(self) -> int:
        """How many blocks of window 0 can be reused, on any tier, held or not: those of ``take_changes`` so far."""
        with self._mutex:
            return len(self._windows[0].tree.nodes) if self._windows else 0

    def escrows(self) -> EscrowSums:
        """The sums of all escrows of window 0."""
        with self._mutex:
            if not self._windows:
                return EscrowSums(0, 0, 0)
            ledger = self._windows[0].ledger
            return EscrowSums(ledger.reserved, ledger.promised, ledger.destinations)

    def holding(self, request_id: str) -> Holding | None:
        """What a request holds of window 0; None for nothing."""
        with self._mutex:
            reservation = self._reservations.get(request_id)
            if reservation is None or not self._windows:
                return None
            share, ledger = reservation.shares[0], self._windows[0].ledger
            return Holding(
                reservation.state,
                self.block_size * reservation.end,
                len(share.pinned) + len(share.private),
                ledger.get(request_id).blocks,
                reservation.writer or "",
                len(reservation.readers),
            )

    def tiers(self) -> tuple[TierFigures, ...]:
        """What each tier of window 0 holds, and what became of its blocks; empty without windows."""
        with self._mutex:
            return self._windows[0].tiers() if self._windows else ()

    def take_changes(self) -> CacheDelta:
        """What changed of window 0 since the last call."""
        with self._mutex:
            changes = [window.tree.take_changes() for window in self._windows]
            return changes[0] if changes else CacheDelta([], [], [])

    def holds(self, request_id: str) -> Holds:
        """What a request holds now."""
        with self._mutex:
            reservation = self._reservations.get(request_id)
            return "nothing" if reservation is None else reservation.state

    def lease(self, request_id: str, keys: Sequence[bytes], prompt_tokens: int, candidate: int) -> int:
        """Pin what resuming needs, at the largest usable endpoint not above ``candidate``; returns it.

        Blocks that are committed to others as room are not pinned: the endpoint is lower instead.
        """
        limit = self._limit(keys, prompt_tokens, candidate)
        with self._mutex:
            return self.block_size * self._reservations.lease(request_id, keys, prompt_tokens, limit).end

    def reserve(self, request_id: str, headroom: int = 0) -> bool:
        """Reserve the room after the lease's endpoint, leaving ``headroom`` blocks of tokens in each window.

        False if it is not there; the lease remains.
        """
        with self._mutex:
            return self._reservations.reserve(request_id, headroom)

    def commit(self, request_id: str, endpoint: int) -> Prepared:
        """Fix a request at ``endpoint``, at or below its lease's.

        If the endpoint is not usable, the lease goes down to the largest one that is, uncommitted. If it is
        usable but the room is not there, everything stays as it was. Otherwise the room cannot be taken away
        any more.
        """
        with self._mutex:
            return self._reservations.commit(request_id, endpoint)

    def prepare(
        self,
        request_id: str,
        keys: Sequence[bytes],
        prompt_tokens: int,
        candidate: int,
        headroom: int = 0,
        writer: str | None = None,
    ) -> Prepared | None:
        """Lease and reserve, and commit at once if the lease keeps the candidate.

        None if the room is not there; nothing is held then.

        Args:
            writer: a request whose prompt has the first ``candidate`` tokens as well, and will compute them if
                they cannot be reused now. The request cannot be materialised before; see ``ready``.
        """
        limit = self._limit(keys, prompt_tokens, candidate)
        with self._mutex:
            return self._reservations.prepare(
                request_id, keys, prompt_tokens, candidate, limit, headroom, writer
            )

    def ready(self, request_id: str) -> bool:
        """Whether a request waits for no block in the making."""
        return not self.writer_of(request_id)

    def materialise(self, request_id: str) -> Materialised:
        """Allocate a request's blocks; its sequence holds them and the leased prefix from then on.

        It must be ``ready``. Cannot fail for want of room once committed. An escrow that was only reserved is
        committed first; ValueError if others have pinned what was its room.
        """
        with self._mutex:
            return self._reservations.materialise(request_id)

    def ask(self, request_id: str, endpoint: int) -> None:
        """Have a committed request leave behind what resuming at ``endpoint`` needs, if there is room for that.

        For those that will want to resume there. Nothing is done where it computes nothing before the endpoint, or
        where the endpoint is beyond its full blocks.
        """
        with self._mutex:
            self._reservations.ask(request_id, endpoint // self.block_size)

    def begin(self, request_id: str, end: int) -> Begun:
        """A sequence's tokens up to ``end`` are about to be computed: its blocks for them, and which snapshots to take.

        Before each of its chunks, as from then on nobody can ask for a snapshot within it.
        """
        with self._mutex:
            return self._reservations.begin(request_id, end)

    def publish(self, request_id: str, computed: int) -> None:
        """Make a sequence's full blocks and snapshots among its first ``computed`` tokens reusable."""
        with self._mutex:
            self._reservations.publish(request_id, computed)

    def publish_ahead(self, request_id: str, end: int) -> None:
        """Make a sequence's full blocks up to token ``end`` reusable, which the wave at hand is about to compute.

        For those who read them in that very wave. Windows that let go of blocks, or keep states, have nothing to read
        there: ValueError if there are any.
        """
        with self._mutex:
            self._reservations.publish_ahead(request_id, end)

    def writer_of(self, request_id: str) -> str:
        """The request whose blocks in the making a request waits for; empty if for nobody's, or if it is unknown."""
        with self._mutex:
            return self._reservations.writer_of(request_id)

    def release(self, request_id: str) -> bool:
        """Give back all a request holds, in any state; False if that is nothing. What it published stays."""
        with self._mutex:
            return self._reservations.release(request_id)

    def on_disk(self, request_id: str) -> tuple[Copy, ...]:
        """The blocks a request holds whose bytes are on disk only."""
        with self._mutex:
            return self._reservations.on_disk(request_id)

    def lose(self, copies: Iterable[Copy]) -> tuple[str, ...]:
        """These copies have no good bytes: forget their blocks and all that follow them.

        Returns:
            The requests that hold one of them. They cannot run and have to be released.
        """
        with self._mutex:
            held = [node for copy in copies for node in self._windows[copy.window].tree.lose(copy)]
            return self._reservations.holders(held)

    def lose_disk(self, window: int) -> None:
        """The disk of a window has failed: forget all that nobody holds there.

        What requests hold there stays: its owner has their bytes elsewhere, or says so by ``lose``.
        """
        with self._mutex:
            self._windows[window].tree.lose_disk()

    def clear(self) -> ClearedCache:
        """Forget all blocks that nobody holds, and the second copies on disk of those that somebody does.

        Escrows keep their room: a block that can be reclaimed becomes a free one.
        """
        with self._mutex:
            forgotten = [window.tree.clear() for window in self._windows]
            left = [node for window in self._windows[:1] for node in window.tree.nodes.values()]
            on_disk = tuple(copy for window in self._windows for copy in window.tree.on_disk())
        device, host, disk = forgotten[0] if forgotten else (0, 0, 0)
        return ClearedCache((device, host, disk), len(left), on_disk)

    def first_kept(self, prompt_tokens: int) -> tuple[int, ...]:
        """By window of attention, the first block of a prompt that is still held once all of it is computed."""
        whole = prompt_tokens // self.block_size
        return tuple(
            window.needed(whole).start
            for window in self._windows
            if isinstance(window, AttentionWindow) and not window.spec.keys_only
        )

    def restore(self, records: Iterable[tuple[bytes, bytes | None, int]], window: int = 0) -> None:
        """At start: take over what a window's disk tier holds.

        Args:
            records: ``(key, parent key or None, disk slot)``, least recently used first. A block whose parent
                is not there is dropped, its slot free.
        """
        with self._mutex:
            if self._windows[window].outlives_process:
                restore_from_disk(self._windows[window].tree, records)

    def flush(self) -> tuple[Move, ...]:
        """At an orderly stop: copies that put each window's latest used blocks on disk, parents first."""
        with self._mutex:
            kept = [window.tree for window in self._windows if window.outlives_process]
            return tuple(move for tree in kept for move in flush_to_disk(tree))

    def check(self) -> None:
        """Raise AuditError unless the books balance: every block of every tier has exactly its owners."""
        with self._mutex:
            check_books(self._windows, self._index, self._reservations)

    def audit(self) -> CacheUse:
        """Raise AuditError unless the books balance and no request holds anything."""
        with self._mutex:
            check_books(self._windows, self._index, self._reservations)
            check_at_rest(self._windows, self._reservations)
        return self.use()

    @contextmanager
    def windows(self) -> Iterator[Sequence[Window]]:
        """The windows while nobody else changes them: for tests, and for measuring other ways to look up."""
        with self._mutex:
            yield self._windows

    def _limit(self, keys: Sequence[bytes], prompt_tokens: int, candidate: int) -> int:
        """The largest endpoint in blocks that there can be up to a candidate in tokens."""
        return max(0, min(min(candidate, prompt_tokens - 1) // self.block_size, len(keys)))

    def _prefix_trees(self) -> list[FullWindow]:
        """The window with full attention, if any."""
        return [window for window in self._windows if isinstance(window, FullWindow)][:1]

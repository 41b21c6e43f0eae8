"""One rank's side of every request's life: announced, claimed, executed, let go."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Sequence
from typing import Protocol

import torch

from wavepp_worker.cache.moves import Copy, Move
from wavepp_worker.cache.rank_cache import RankCache
from wavepp_worker.handoff.kv_source import KVSource, Settled
from wavepp_worker.runtime.protocol.events import Cleared, HandoffSettled
from wavepp_worker.runtime.protocol.requests import Arrival
from wavepp_worker.runtime.protocol.waves import Span
from wavepp_worker.runtime.state.reports import RankReports
from wavepp_worker.runtime.state.request_table import LocalRequest, RequestTable
from wavepp_worker.runtime.trace.timeline import Timeline

logger = logging.getLogger(__name__)


class Tiers(Protocol):
    """Where block contents are; see ``tiers.tier_store``."""

    def run(self, moves: Sequence[Move]) -> Sequence[Copy]:
        """Copy blocks between tiers, in order; returns those that the disk did not take."""

    def last_run(self, window: int, blocks: Sequence[int]) -> int:
        """The number of the last ``run`` that touched some of these blocks of the device, less than 0 for none.

        0 if none did, or if what is run is over when ``run`` returns.
        """

    def follow(self, runs: int) -> None:
        """Have waves from now on wait for so many runs."""

    def under_way(self, runs: int) -> bool:
        """Whether some of so many runs are, and waves that are queued now would not wait for them."""

    def prefetch(self, request_id: str, copies: Sequence[Copy]) -> Sequence[Copy]:
        """Read copies on disk into memory, where ``run`` finds them whatever happens; returns the damaged ones."""

    def drop_prefetched(self, request_id: str) -> None:
        """A request needs nothing of what was prefetched for it any more."""

    def keep_on_disk(self, copies: Collection[Copy]) -> None:
        """Forget what else is on disk, so that a later process does not find it either."""

    def switched_off(self) -> Sequence[int]:
        """The windows whose disk has failed: it holds nothing."""


class RequestLifecycle:
    """What happens to a request on this rank between its announcement and its end. Thread-safe.

    The WAVE thread announces, claims for immediate ownership, and lets go; the LOOP thread materialises and
    advances; the hand-off settles from a thread of its own.

    Attributes:
        source: offers the KV of finished prompts to decode workers; None where nothing is handed off.
    """

    def __init__(
        self,
        *,
        requests: RequestTable,
        cache: RankCache,
        tiers: Tiers,
        reports: RankReports,
        timeline: Timeline,
    ) -> None:
        self._requests = requests
        self._cache = cache
        self._tiers = tiers
        self._reports = reports
        self._timeline = timeline
        self.source: KVSource | None = None
        self._off: set[int] = set()
        self._moving = threading.Lock()
        self._cache_changes = threading.Lock()
        self._materialising = threading.Lock()
        self._ending = threading.Lock()

    def announce(self, arrival: Arrival) -> None:
        """Know a request from now on.

        Before anybody else: a decode worker is told of it only when all ranks know its secret.
        """
        self._requests.announce(arrival)
        if self.source is not None and arrival.secret is not None:
            self.source.expect(arrival.request_id, arrival.secret)

    def prefetch(self, request_id: str) -> bool:
        """Read what a request leases on disk into memory, before this rank promises it to the others.

        Returns False if some of it is damaged: it is forgotten then, and the request holds nothing any more.
        """
        on_disk = self._cache.on_disk(request_id)
        if not on_disk:
            return True
        with self._moving:
            # Some of it may only have been on its way to disk when it was leased.
            pass
        damaged = self._tiers.prefetch(request_id, on_disk)
        if not damaged:
            return True
        if not self._tiers.switched_off():
            logger.warning(
                "%d blocks on disk are damaged and will be computed again; check the disk", len(damaged)
            )
        self._lose(damaged)
        self.release(request_id)
        return False

    def take_blocks(self, local: LocalRequest) -> None:
        """Take a request's reserved blocks, copy what other tiers hold or shall hold, and keep its table."""
        request_id = local.request.request_id
        with self._moving:
            with self._cache_changes:
                claimed = self._cache.materialise(request_id)
                self._reports.cache_changed(None)
            # Nobody has been promised these: who leases one meanwhile waits until it is known to be lost.
            lost = self._tiers.run(claimed.moves)
            if lost:
                self._lose(lost)
            for window, table in enumerate(claimed.tables):
                self._wait_for_runs(local, window, table)
            for states in (claimed.states, claimed.resume):
                for window, state in enumerate(states):
                    self._wait_for_runs(local, window, () if state is None else (state,))
        self._tiers.drop_prefetched(request_id)
        local.materialised = claimed

    def release(self, request_id: str) -> None:
        """Give back all blocks that a request holds, in any state."""
        self._cache.release(request_id)
        self._tiers.drop_prefetched(request_id)

    def install(self, local: LocalRequest, endpoint: int, *, written: bool = True) -> None:
        """Make a request whose blocks are taken executable from token ``endpoint`` on, and offer its KV.

        ``written``: what it reuses is, or is on its way from other tiers; else it is when its next chunk is.
        """
        assert local.materialised is not None, "take_blocks comes first"
        request = local.request
        # States of recurrent layers are found in ``materialised``; a rank that has no others has an empty table.
        rows = [table for table in local.materialised.tables if table]
        local.table = torch.tensor(rows if len(rows) > 1 else next(iter(rows), []), dtype=torch.int64)
        local.position = endpoint
        if request.handoff and self.source is not None:
            try:
                state = next((state for state in local.materialised.states if state is not None), None)
                table = self._offered(local)
                ready = endpoint if written and not self._tiers.under_way(local.last_run) else 0
                self.source.offer(request.request_id, table, request.prompt_tokens, ready, state)
            except Exception as error:
                self.source.withdraw(request.request_id)
                self._reports.failed(request.request_id, error)
                self.settled(request.request_id, "failed")

    def ready(self, request_id: str) -> bool:
        """Whether a request waits for no block in the making; also if it is unknown."""
        return self._cache.ready(request_id)

    def writer_of(self, request_id: str) -> str:
        """The request whose blocks in the making a request waits for; empty if for nobody's, or if it is unknown."""
        return self._cache.writer_of(request_id)

    def materialise(self, request_id: str, *, written: bool = True) -> bool:
        """Turn a committed request's lease and escrow into blocks, if that has not been done (section 4.5).

        Called by the LOOP thread. Returns whether it did; not if the request was let go of meanwhile.

        Args:
            written: as of ``install``.
        """
        local = self._requests.get(request_id)
        if local is None:
            return False
        with self._materialising:
            if local.table is not None or local.executed or local.endpoint is None:
                return False
            with self._timeline.span("loop", "materialise", requests=(request_id,)):
                self.take_blocks(local)
                self.install(local, local.endpoint, written=written)
            return True

    def publish_ahead(self, local: LocalRequest, end: int) -> None:
        """Give those who wait for a request's blocks up to token ``end`` these, though only the next wave writes them.

        For who is in that wave as well. Called by the LOOP thread, which executes it next.
        """
        with self._cache_changes:
            self._cache.publish_ahead(local.request.request_id, end)
            self._reports.cache_changed(local, more=True)

    def chunk_begins(self, local: LocalRequest, end: int) -> None:
        """Take the blocks that the next chunk writes, up to token ``end``, and those of snapshots before it.

        Called by the LOOP thread. Whoever asks for a snapshot from now on within that chunk is too late.
        """
        if not self._cache.begins:
            return
        with self._moving:
            with self._cache_changes:
                begun = self._cache.begin(local.request.request_id, end)
                self._reports.cache_changed(None)
            lost = self._tiers.run(begun.moves)
            if lost:
                self._lose(lost)
            for window, (_, blocks) in enumerate(begun.taken):
                self._wait_for_runs(local, window, blocks)
            for window, snapshots in enumerate(begun.snapshots):
                self._wait_for_runs(local, window, tuple(snapshots.values()))
        local.snapshots = begun.snapshots
        assert local.table is not None
        assert local.materialised is not None
        # Recurrent windows have no row.
        attention = [
            taken for taken, table in zip(begun.taken, local.materialised.tables, strict=True) if table
        ]
        for row, (first, blocks) in zip(torch.atleast_2d(local.table), attention, strict=False):
            row[first : first + len(blocks)] = torch.tensor(blocks, dtype=torch.int64)

    def _wait_for_runs(self, local: LocalRequest, window: int, blocks: Sequence[int]) -> None:
        """Waves of a request touch these blocks: what others have there may be on its way to them, or from them."""
        local.last_run = max(local.last_run, self._tiers.last_run(window, blocks))

    def wave_begins(self, locals_: Sequence[LocalRequest]) -> None:
        """The LOOP thread queues a wave of these next."""
        self._tiers.follow(max((local.last_run for local in locals_), default=0))

    def chunk_executed(
        self, local: LocalRequest, span: Span, compute: tuple[float, ...], *, more: bool = False
    ) -> None:
        """Account for an executed chunk: publish its full blocks, hand it off, finish after the last one.

        Args:
            compute: seconds each rank up to this one took for the wave.
            more: this is not the last chunk of the wave.
        """
        request_id, end = span.request_id, span.start + span.length
        local.position = end
        if not local.compute:
            local.compute = [0.0] * len(compute)
        local.compute = [total + seconds for total, seconds in zip(local.compute, compute, strict=True)]
        with self._cache_changes:
            self._cache.publish(request_id, end)
            self._reports.cache_changed(local, more=more)
        if local.request.handoff and self.source is not None:
            try:
                self.source.advance(request_id, end, self._offered(local) if self._cache.slides else None)
            except Exception as error:
                self._reports.failed(request_id, error)
        with self._ending:
            local.executed = span.last
            if span.last and (local.settled or not local.request.handoff):
                self._forget(request_id)

    def clear(self, clear_id: int) -> None:
        """Forget all that can be reused and that no request holds, on every tier, and report it.

        What requests hold stays reusable. Called by the WAVE thread.
        """
        with self._moving:
            with self._cache_changes:
                cleared = self._cache.clear()
                self._reports.cache_changed(None)
            self._tiers.keep_on_disk(cleared.on_disk)
            if set(self._tiers.switched_off()) - self._off:
                self._lose(())
        self._reports.send(
            Cleared(
                clear_id=clear_id, rank=self._reports.rank, forgotten=cleared.forgotten, held=cleared.held
            )
        )

    def let_go(self, request_id: str) -> None:
        """Drop a request in whatever state it is. No wave in flight carries it. Unknown ids are ignored."""
        local = self._requests.get(request_id)
        if local is None:
            # On rank 0 it may not have been announced yet.
            self._requests.forget(request_id)
            return
        with self._materialising, self._ending:
            handed_off = local.request.handoff and self.source is not None
            offered = local.table is not None and handed_off
            waits = offered and not local.settled
            local.executed = True
        if waits and self.source is not None:
            self.source.withdraw(request_id)
            return
        if self.source is not None and handed_off and not offered:
            self.source.withdraw(request_id)
        self._forget(request_id)
        if handed_off and not offered and local.endpoint is not None:
            self._report_settled(request_id, "withdrawn")

    def settled(self, request_id: str, outcome: Settled) -> None:
        """The hand-off no longer reads a request's blocks; they are freed once no wave will write them."""
        with self._ending:
            local = self._requests.get(request_id)
            if local is not None:
                local.settled = True
                if local.executed:
                    self._forget(request_id)
        self._report_settled(request_id, outcome)

    def _offered(self, local: LocalRequest) -> torch.Tensor:
        """A request's block table, of a sliding window without what it will have passed by the prompt's end."""
        assert local.table is not None
        kept = local.table.clone()
        for row, first in zip(
            torch.atleast_2d(kept), self._cache.first_kept(local.request.prompt_tokens), strict=False
        ):
            row[:first] = -1
        return kept

    def _report_settled(self, request_id: str, outcome: Settled) -> None:
        self._reports.send(HandoffSettled(rank=self._reports.rank, request_id=request_id, outcome=outcome))

    def _lose(self, copies: Sequence[Copy]) -> None:
        """Forget blocks whose bytes are gone, and all on a disk that has failed."""
        with self._cache_changes:
            self._cache.lose(copies)
            for window in set(self._tiers.switched_off()) - self._off:
                self._cache.lose_disk(window)
                self._off.add(window)
            self._reports.cache_changed(None)

    def _forget(self, request_id: str) -> None:
        self.release(request_id)
        self._requests.forget(request_id)

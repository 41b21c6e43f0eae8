"""What the WAVE and LOOP threads of one rank share: its requests, its cache and its hand-off."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from itertools import islice, takewhile
from typing import Protocol

import torch

from wavepp_worker.cache.hashing import BlockHasher, cache_seed
from wavepp_worker.cache.moves import Copy, Move
from wavepp_worker.cache.rank_cache import RankCache
from wavepp_worker.errors import AuditError
from wavepp_worker.handoff.kv_source import KVSource, Settled
from wavepp_worker.runtime.protocol.events import (
    AuditReport,
    CacheChanges,
    HandoffSettled,
    Heartbeat,
    StoredRun,
)
from wavepp_worker.runtime.protocol.outbox import Outbox
from wavepp_worker.runtime.protocol.rank_config import RankConfig
from wavepp_worker.runtime.protocol.requests import PrefillRequest
from wavepp_worker.runtime.protocol.waves import Span
from wavepp_worker.runtime.state.request_table import LocalRequest, RequestTable
from wavepp_worker.runtime.trace.timeline import OFF, Timeline


class Tiers(Protocol):
    """Where block contents are; see ``runtime.tiers``."""

    def run(self, moves: Sequence[Move]) -> None:
        """Copy blocks between tiers, in order."""

    def damaged(self, copies: Sequence[Copy]) -> Sequence[Copy]:
        """Those of these copies on disk that turn out to hold other bytes than they should."""


class LocalState:
    """One rank's side of every request's life: announce, claim, advance, let go. Thread-safe."""

    def __init__(
        self,
        config: RankConfig,
        events: Outbox,
        cache: RankCache,
        tiers: Tiers,
        timeline: Timeline = OFF,
    ) -> None:
        self.config = config
        self.timeline = timeline
        self.events = events
        self.cache = cache
        self.tiers = tiers
        self.requests = RequestTable()
        self._hasher = BlockHasher(config.block_size)
        self.source: KVSource | None = None
        self.waves = 0
        self.rounds = 0
        self.stopping = threading.Event()
        self._last_wave = time.monotonic()
        self._cache_changes = threading.Lock()
        self._materialising = threading.Lock()
        self._ending = threading.Lock()

    def announce(self, request: PrefillRequest) -> None:
        """Know a request from now on, and hash its blocks."""
        seed = cache_seed(self.config.model_id, request.salt, request.lora)
        keys = self._hasher.keys(request.tokens, seed)
        self.requests.announce(LocalRequest(request, keys))

    def claim_blocks(self, local: LocalRequest) -> None:
        """Take a request's reserved blocks, copy what other tiers hold or shall hold, and keep its table."""
        request_id = local.request.request_id
        with self._cache_changes:
            claimed = self.cache.materialise(request_id)
            self._report_changes(None)
        self.tiers.run(claimed.moves)
        local.claimed = claimed

    def install(self, local: LocalRequest, endpoint: int) -> None:
        """Make a request whose blocks are claimed executable from token ``endpoint`` on, and offer its KV."""
        assert local.claimed is not None, "claim_blocks comes first"
        request = local.request
        # A rank of other layers than attention has an empty table: it finds its states in ``claimed``.
        local.table = torch.tensor(next(iter(local.claimed.tables), []), dtype=torch.int64)
        local.position = endpoint
        if request.handoff and self.source is not None:
            self.source.offer(request.request_id, local.table, request.prompt_tokens, endpoint)

    def materialise(self, local: LocalRequest) -> bool:
        """Turn a committed request's lease and escrow into blocks, if that has not been done (section 4.5).

        Called by the LOOP thread. Returns whether it did; not if the request was let go of meanwhile.
        """
        with self._materialising:
            if local.table is not None or local.executed or local.endpoint is None:
                return False
            with self.timeline.span("loop", "materialise", requests=(local.request.request_id,)):
                self.claim_blocks(local)
                self.install(local, local.endpoint)
            return True

    def advance(self, local: LocalRequest, span: Span, compute: tuple[float, ...]) -> None:
        """Account for an executed chunk: publish its full blocks, hand it off, finish after the last one."""
        request_id, end = span.request_id, span.start + span.length
        local.position = end
        if not local.compute:
            local.compute = [0.0] * len(compute)
        local.compute = [total + seconds for total, seconds in zip(local.compute, compute, strict=True)]
        with self._cache_changes:
            self.cache.publish(request_id, end)
            self._report_changes(local)
        if local.request.handoff and self.source is not None:
            self.source.advance(request_id, end)
        with self._ending:
            local.executed = span.last
            if span.last and (local.settled or not local.request.handoff):
                self._forget(request_id)

    def let_go(self, request_id: str) -> None:
        """Drop a request in whatever state it is. No wave in flight carries it. Unknown ids are ignored."""
        local = self.requests.get(request_id)
        if local is None:
            return
        with self._materialising, self._ending:
            handed_off = local.request.handoff and self.source is not None
            offered = local.table is not None and handed_off
            waits = offered and not local.settled
            local.executed = True
        if waits and self.source is not None:
            self.source.withdraw(request_id)
            return
        self._forget(request_id)
        if handed_off and not offered and local.endpoint is not None:
            self.events.send(
                HandoffSettled(rank=self.config.rank, request_id=request_id, outcome="withdrawn")
            )

    def settled(self, request_id: str, outcome: Settled) -> None:
        """The hand-off no longer reads a request's blocks; they are freed once no wave will write them."""
        with self._ending:
            local = self.requests.get(request_id)
            if local is not None:
                local.settled = True
                if local.executed:
                    self._forget(request_id)
        self.events.send(HandoffSettled(rank=self.config.rank, request_id=request_id, outcome=outcome))

    def wave_executed(self) -> None:
        self.waves += 1
        self._last_wave = time.monotonic()

    def heartbeat(self, waiting: int, running: int) -> None:
        self.events.send(
            Heartbeat(
                rank=self.config.rank,
                wave_age=time.monotonic() - self._last_wave,
                waiting=waiting,
                running=running,
                used_blocks=self.cache.use().held,
                waves=self.waves,
                rounds=self.rounds,
            )
        )

    def audit(self, audit_id: int) -> None:
        """Report this rank's books to the engine."""
        problems: tuple[str, ...] = ()
        try:
            if self.requests.ids():
                self.cache.check()
            else:
                self.cache.audit()
        except AuditError as error:
            problems = (str(error),)
        use = self.cache.use()
        self.events.send(
            AuditReport(
                audit_id=audit_id,
                rank=self.config.rank,
                capacity=use.capacity,
                free=use.free,
                reusable=use.reusable,
                live=self.requests.ids(),
                problems=problems,
            )
        )

    def _report_changes(self, published: LocalRequest | None) -> None:
        """Tell the engine what changed in the tree; ``published`` is the request whose blocks attached."""
        stored, removed = self.cache.take_changes()
        keys = [block.key for block in stored]
        runs = list(self._stored_runs(keys, published)) if published is not None else []
        if runs or removed:
            self.events.send(CacheChanges(rank=self.config.rank, stored=tuple(runs), removed=tuple(removed)))

    def _stored_runs(self, keys: list[int], local: LocalRequest) -> Iterator[StoredRun]:
        """Blocks of a request as stretches without gaps: only attention to everything leaves none."""
        request, width, at = local.request, 4 * self.config.block_size, 0
        while keys:
            at = local.keys.index(keys[0], at)
            pairs = zip(keys, islice(local.keys, at, None), strict=False)
            count = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            tokens = request.tokens[at * width : (at + count) * width] if self.config.first else b""
            parent = local.keys[at - 1] if at else None
            yield StoredRun(tuple(keys[:count]), parent, tokens, request.salt, request.lora)
            keys = keys[count:]

    def _forget(self, request_id: str) -> None:
        self.cache.release(request_id)
        self.requests.forget(request_id)

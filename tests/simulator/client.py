"""The engine's side of a simulated replica: production's ledger of requests, and what a router would believe."""

from __future__ import annotations

import math
from collections import defaultdict

import msgspec
from wavepp_worker.cache.moves import Tier
from wavepp_worker.runtime.client.index_feed import IndexFeed
from wavepp_worker.runtime.client.request_ledger import RequestLedger
from wavepp_worker.runtime.protocol.events import (
    Admitted,
    CacheChanges,
    Cleared,
    Event,
    Finished,
    Heartbeat,
    Released,
)
from wavepp_worker.runtime.protocol.requests import PrefillRequest

from tests.simulator.rank import MODEL_ID, SimulatedRank


class SimulatedClient:
    """Hears what ranks tell, in the order of each.

    Attributes:
        requests: all that arrived.
        aborted: those that were aborted before their answer.
        answered: when each answer came.
        clears: numbers of the times that the ranks were asked to forget what nobody holds.
        stored: blocks of which a router was told that the worker can reuse them.
        tiers: where it was told that they are.
    """

    def __init__(self, ranks: list[SimulatedRank], block_size: int) -> None:
        self.requests: dict[str, PrefillRequest] = {}
        self.aborted: set[str] = set()
        self.answered: list[float] = []
        self.clears: set[int] = set()
        self.stored: set[int] = set()
        self.tiers: dict[int, Tier] = {}
        self._cleared: defaultdict[int, set[int]] = defaultdict(set)
        self._ranks = ranks
        self._ledger = RequestLedger(len(ranks))
        self._own_ids: dict[str, str] = {}
        self._feed = IndexFeed(len(ranks), block_size, MODEL_ID)
        self._reports_blocks = all(rank.keeps_prefixes for rank in ranks)
        self._unwanted: set[str] = set()
        self._beats: dict[int, float] = {}

    @property
    def live(self) -> list[str]:
        return self._ledger.names()

    def submit(self, request: PrefillRequest, now: float) -> None:
        """Note a request, which the ranks are told under the name that scripts know."""
        self.requests[request.request_id] = request
        live = self._ledger.accept(request, now, math.inf)
        self._own_ids[live.name] = live.request.request_id

    def abort(self, request_id: str) -> None:
        """Note an abort, which the ranks are told in any case."""
        self._unwanted.add(request_id)
        live = self._ledger.get(request_id)
        if live is not None and not live.closed:
            self.aborted.add(request_id)
        self._ledger.abort(request_id)

    def listen(self, rank: SimulatedRank, now: float) -> None:
        """Read what a rank has told so far."""
        for event in rank.events.take():
            self.hear(event, now)

    def hear(self, event: Event, now: float) -> None:
        match event:
            case CacheChanges():
                if self._reports_blocks:
                    self._change(event)
            case Heartbeat(rank=rank):
                assert self._beats.get(rank, -1.0) < now, f"rank {rank} beats without rest"
                self._beats[rank] = now
            case Cleared():
                twice = event.rank in self._cleared[event.clear_id]
                assert event.clear_id in self.clears, f"{event} was not asked for"
                assert not twice, f"{event} comes twice"
                self._cleared[event.clear_id].add(event.rank)
            case Admitted() | Finished() | Released():
                if isinstance(event, Released):
                    assert event.request_id in self._unwanted, (
                        f"{event.request_id} was let go of, and nobody asked"
                    )
                own = msgspec.structs.replace(event, request_id=self._own_ids[event.request_id])
                if self._ledger.progress(own, now).answer is not None:
                    self.answered.append(now)
            case _:
                raise AssertionError(f"unexpected: {event}")

    def check(self, now: float) -> None:
        """With nothing in flight: a router believes just what all ranks can reuse (promise 15)."""
        for rank in self._ranks:
            self.listen(rank, now)
        for number in self.clears:
            assert len(self._cleared[number]) == len(self._ranks), (
                f"clear {number} was done by ranks {self._cleared[number]}"
            )
        if self._reports_blocks:
            places = [rank.reusable() for rank in self._ranks]
            keys = set.intersection(*map(set, places))
            reusable = {self._feed._blocks[key].hash for key in keys}
            slowest = {self._feed._blocks[key].hash: max(each[key] for each in places) for key in keys}
            assert self.tiers == slowest, "a router was told of another tier than the slowest of any rank"
            assert self.stored == reusable, (
                f"told and not reusable: {self.stored - reusable}; not told: {reusable - self.stored}"
            )

    def _change(self, changes: CacheChanges) -> None:
        for delta in self._feed.apply(changes):
            assert self.stored.isdisjoint(delta.stored), f"{delta.stored} were told twice"
            assert self.stored.issuperset(delta.removed), f"{delta.removed} had not been told"
            self.stored.update(delta.stored)
            self.stored.difference_update(delta.removed)
            assert self.stored.issuperset(delta.moved), f"{delta.moved} moved, and had not been told"
            for each in delta.removed:
                del self.tiers[each]
            self.tiers.update(dict.fromkeys((*delta.stored, *delta.moved), delta.tier))

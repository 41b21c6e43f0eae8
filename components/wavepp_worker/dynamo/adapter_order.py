"""Which adapters a worker enters in discovery before itself: those that other workers have there."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

from wavepp_worker.dynamo.adapter_names import short_name
from wavepp_worker.dynamo.model_cards import BASE, CardsByWorker, WorkerCards

LONGEST_WAIT_SECONDS = 13.0
"""For another worker to have all adapters, after it was last seen to enter some, or for discovery to answer."""
MOST_SECONDS = 60.0
"""For all others together, whatever they do."""
EXPIRY_SECONDS = 6.0
"""After the moment at which discovery is to forget a worker, until it has."""
SETTLE_SECONDS = 3.0
"""After all others are gone, until frontends have heard of it."""
RENEWAL_SECONDS = 1.5
"""By which a worker that renews its cards has them stay longer, at least; etcd counts in whole seconds."""


class AdapterOrder:
    """Says from what is in discovery, look by look, what to enter. Pure: times are given.

    Replicas of a role have the same adapters, so who lacks some, or its base model, is about to enter them, or has
    left. And who has not been seen to renew its cards may be dead: a frontend that came after its death knows no
    base model of it, and could not add its adapters.
    """

    def __init__(self, names: Iterable[str], now: float) -> None:
        """``names``: the worker's own adapters. ``now``: seconds of ``time.monotonic()``, as for ``to_enter``."""
        self._names = tuple(names)
        self._began = now
        self._end = now + LONGEST_WAIT_SECONDS
        self._first: dict[int, float] = {}
        self._most: dict[int, int] = {}
        self._seen = -math.inf
        self._known = CardsByWorker()

    def to_enter(self, others: CardsByWorker | None, now: float) -> list[str] | None:
        """The adapters to enter before the worker itself; None if that is still to be seen.

        Args:
            others: what other workers have; None if discovery does not say.
        """
        if others is None:
            return self.those_of(self._known, self._names) if self.late(now) else None
        self._known = others
        if others:
            self._seen = now
        elif now < self._seen + SETTLE_SECONDS:
            return None
        for worker, cards in others.items():
            self._first.setdefault(worker, cards.expires)
        self._wait_for(others, now)
        if not self.late(now) and any(self._changes(worker, cards) for worker, cards in others.items()):
            return None
        return self.those_of(others, self._names)

    def late(self, now: float) -> bool:
        """Whether nothing is waited for any more."""
        return now >= min(self._end, self._began + MOST_SECONDS)

    @staticmethod
    def those_of(others: CardsByWorker, names: Collection[str]) -> list[str]:
        """The ones that some other worker has."""
        return [name for name in names if any(short_name(name) in each.models for each in others.values())]

    @staticmethod
    def any_alone(others: CardsByWorker, names: Collection[str]) -> bool:
        """Whether another worker has its base model without some of these."""
        wanted = {short_name(name) for name in names}
        return any(BASE in each.models and not wanted <= each.models for each in others.values())

    def _wait_for(self, others: CardsByWorker, now: float) -> None:
        """Longer, if more has come, or if some are to be forgotten later."""
        for worker, cards in others.items():
            if len(cards.models) > self._most.get(worker, 0):
                self._most[worker] = len(cards.models)
                self._end = max(self._end, now + LONGEST_WAIT_SECONDS)
            if not self._renewed(worker, cards):
                self._end = max(self._end, cards.expires + EXPIRY_SECONDS)

    def _changes(self, worker: int, cards: WorkerCards) -> bool:
        wanted = {BASE, *map(short_name, self._names)}
        return not self._renewed(worker, cards) or not wanted <= cards.models

    def _renewed(self, worker: int, cards: WorkerCards) -> bool:
        return math.isinf(cards.expires) or cards.expires - self._first[worker] > RENEWAL_SECONDS

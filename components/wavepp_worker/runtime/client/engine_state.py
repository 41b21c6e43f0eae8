"""What the callers' threads and the link's thread share of one engine: its requests, its ranks, its death."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

from wavepp_worker.errors import ConfigError, EngineDead
from wavepp_worker.runtime.client.rank_link import RankLink
from wavepp_worker.runtime.client.rank_roster import RankRoster
from wavepp_worker.runtime.client.request_ledger import RequestLedger
from wavepp_worker.runtime.protocol.commands import Abort
from wavepp_worker.runtime.protocol.requests import PrefillResult


class EngineState:
    """Lives as long as its engine; it dies or is closed once, and never comes back.

    Attributes:
        changed: notified under ``lock`` when a rank reported its books, and when the engine died.
        ledger: live requests; under ``lock``.
        roster: what the ranks said of themselves; under ``lock``.
        started: all ranks are ready, or the engine died or was closed before.
        death: why it died, if it did.
        link: the ranks, from ``start`` on.
    """

    def __init__(self, ranks: int, on_death: Callable[[str], None] | None) -> None:
        """``on_death`` is told, once, why a started engine died."""
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.ledger = RequestLedger(ranks)
        self.roster = RankRoster(ranks)
        self.started = threading.Event()
        self.death: EngineDead | ConfigError | None = None
        self.link: RankLink | None = None
        self._on_death = on_death
        self._begun = False
        self._closed = False

    def connect(self, make: Callable[[], RankLink]) -> None:
        """Let ``make`` spawn the ranks, the first time; if the engine is closed, none are left.

        Raises:
            ConfigError: as of ``make``.
            EngineDead: the engine is closed.
        """
        closed = EngineDead("the engine was closed before it had started; make a new one")
        with self.lock:
            if self._closed:
                raise closed
            if self._begun:
                return
            self._begun = True
        link = make()
        with self.lock:
            if not self._closed:
                self.link = link
                return
        link.close(graceful=False)
        raise closed

    @property
    def alive(self) -> bool:
        """Started, not closed, and every rank lives."""
        return self.started.is_set() and self.death is None and not self._closed

    def running_link(self) -> RankLink:
        """The ranks, to command them; call it under ``lock``.

        Raises:
            EngineDead: the engine is not running.
        """
        if self.death is not None:
            raise EngineDead(str(self.death))
        if self._closed:
            raise EngineDead("the engine was closed; make a new one")
        if self.link is None:
            raise EngineDead("the engine is not running; call start() first")
        return self.link

    def abort(self, name: str, error: Exception) -> None:
        """Fail a request with ``error``, and tell the ranks to let go of it; unknown names are ignored."""
        with self.lock:
            future = self._abort(name)
        if future is not None:
            future.set_exception(error)

    def withdraw(self, request_id: str, error: Callable[[str], Exception]) -> None:
        """As ``abort``, of the request that ranks know under ``request_id``; ``error`` makes one of its name."""
        # Under one hold of the lock: when it is over, its name may be another request's.
        with self.lock:
            name = self.ledger.name(request_id)
            future = None if name is None else self._abort(name)
        if name is not None and future is not None:
            future.set_exception(error(name))

    def _abort(self, name: str) -> Future[PrefillResult] | None:
        request_id, future = self.ledger.abort(name)
        if request_id is not None and self.link is not None and not self._closed:
            self.link.send(Abort(request_id=request_id))
        return future

    def die(self, reason: EngineDead | ConfigError) -> None:
        """End the ranks and fail what is in flight; only the first death counts."""
        with self.lock:
            if self.death is not None or self._closed:
                return
            self.death = reason
            self.changed.notify_all()
        if self.link is not None:
            self.link.processes.kill()
        self._fail_all(str(reason))
        running = self.started.is_set()
        self.started.set()
        if running and self._on_death is not None:
            self._on_death(str(reason))

    def close(self) -> None:
        """Stop the ranks and fail what is in flight; idempotent."""
        graceful = self.alive
        with self.lock:
            if self._closed:
                return
            self._closed = True
        # Whoever waits for the ranks to be ready waits for nothing now.
        self.started.set()
        if self.link is not None:
            self.link.close(graceful)
        self._fail_all("the engine was closed while the request was in flight")

    def _fail_all(self, reason: str) -> None:
        with self.lock:
            futures = self.ledger.drop_all()
        for future in futures:
            future.set_exception(EngineDead(reason))

"""The requests an engine has accepted and not yet fully let go of, and its totals. Pure bookkeeping.

The ledger takes events and returns what follows from them; it owns no thread and no socket. The engine calls
it under its lock.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

import msgspec

from wavepp_worker.errors import InvalidRequest
from wavepp_worker.runtime.protocol.events import Admitted, Finished, HandoffSettled, Released
from wavepp_worker.runtime.protocol.prefill_trace import PrefillTrace
from wavepp_worker.runtime.protocol.requests import (
    HandedOff,
    PrefillRequest,
    PrefillResult,
    RankHandedOff,
    Timings,
)

Progress = Admitted | Finished | Released | HandoffSettled


@dataclass
class LiveRequest:
    """One request, from submission until no rank holds anything for it.

    Attributes:
        name: the id its caller gave it.
        request: as the ranks know it, under an id of its own.
        submitted: monotonic seconds.
        deadline: monotonic seconds after which it fails.
        on_admitted: called once all ranks have admitted it.
        answered: monotonic seconds at which the last rank's answer arrived.
        closed: its future has, or is about to have, a result or an error.
        aborted: the ranks were asked to let go of it.
        released: they have; a hand-off may still be settling.
        settled: how the hand-off ended on the ranks where it is over, in that order.
    """

    name: str
    request: PrefillRequest
    future: Future[PrefillResult]
    submitted: float
    deadline: float
    on_admitted: Callable[[], None] | None = None
    admitted: Admitted | None = None
    finished: Finished | None = None
    answered: float = 0.0
    closed: bool = False
    aborted: bool = False
    released: bool = False
    settled: dict[int, RankHandedOff] = field(default_factory=dict)

    def result(self) -> PrefillResult | None:
        """The answer, once both rank 0 and the last rank have reported."""
        if self.admitted is None or self.finished is None:
            return None
        total = self.answered - self.submitted
        return PrefillResult(
            request_id=self.name,
            first=self.finished.first,
            prompt_tokens=self.request.prompt_tokens,
            reused_tokens=self.admitted.endpoint,
            timings=Timings(
                queued=self.admitted.queued,
                admission=self.admitted.admission,
                execution=max(0.0, total - self.admitted.queued - self.admitted.admission),
                total=total,
                stages=self.finished.stages,
            ),
            trace=self._trace(self.admitted, self.finished) if self.request.traced else None,
        )

    def _trace(self, admitted: Admitted, finished: Finished) -> PrefillTrace:
        selected = admitted.at - admitted.admission
        arrived = selected - admitted.queued
        return PrefillTrace(
            arrived=arrived,
            discovered=arrived + admitted.discovery,
            selected=selected,
            admitted=admitted.at,
            attempts=admitted.attempts,
            waves=finished.waves,
            answered=self.answered,
        )

    def over(self, ranks: int) -> bool:
        """Whether no rank holds anything for it any more, as far as the engine has heard."""
        if self.aborted and not self.released:
            # Some rank may still hold blocks for it: to give its name to another would hide that.
            return False
        if self.request.handoff and self.admitted is not None:
            return self.closed and len(self.settled) == ranks
        return self.closed

    def handed_off(self, ranks: int) -> HandedOff | None:
        """How its hand-off ended, if it was answered and no rank holds its KV any more."""
        if self.finished is None or len(self.settled) < ranks:
            return None
        return HandedOff(request_id=self.name, answered=self.answered, ranks=tuple(self.settled.values()))


@dataclass(frozen=True)
class Consequence:
    """What follows from an event: calls, an answer for a future, or a request nobody wants any more."""

    on_admitted: Callable[[], None] | None = None
    future: Future[PrefillResult] | None = None
    answer: PrefillResult | None = None
    unwanted: str | None = None
    handed_off: HandedOff | None = None


class RequestLedger:
    """Live requests by their callers' ids, and how many ended how.

    Callers may use an id again once it is free. Ranks never see one twice: each reports over a connection of its
    own, so that what one says of a request may come after all of them have let go of it.
    """

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._live: dict[str, LiveRequest] = {}
        self._names: dict[str, str] = {}
        self._numbers = itertools.count()
        self.prompt_tokens = 0
        self.reused_tokens = 0
        self.finished = 0
        self.failed = 0

    def accept(
        self,
        request: PrefillRequest,
        now: float,
        deadline: float,
        on_admitted: Callable[[], None] | None = None,
    ) -> LiveRequest:
        """Enter a request, and give it the id under which the ranks are to know it.

        Raises:
            InvalidRequest: its id is in use.
        """
        name = request.request_id
        if name in self._live:
            raise InvalidRequest(f"request id {name} is in use; ids are unique among live requests")
        future: Future[PrefillResult] = Future()
        future.set_running_or_notify_cancel()
        request = msgspec.structs.replace(request, request_id=f"{name}-{next(self._numbers)}")
        live = self._live[name] = LiveRequest(name, request, future, now, deadline, on_admitted)
        self._names[request.request_id] = name
        return live

    def get(self, name: str) -> LiveRequest | None:
        """The live request of this name."""
        return self._live.get(name)

    def name(self, request_id: str) -> str | None:
        """The name of the live request that ranks know under ``request_id``."""
        return self._names.get(request_id)

    def names(self) -> list[str]:
        """Of all live requests."""
        return sorted(self._live)

    def find(self, request_id: str) -> list[LiveRequest]:
        """Live requests of this name, of this id among the ranks, or that a job or an attempt of this one has."""
        exact = self._live.get(request_id) or self._live.get(self._names.get(request_id, ""))
        if exact is not None:
            return [exact]
        return [live for name, live in self._live.items() if name.startswith(f"{request_id}-")]

    def longest(self, most: int) -> list[LiveRequest]:
        """At most so many of the live requests, those that came first, without probes."""
        wanted = (live for live in self._live.values() if not live.request.probe)
        return heapq.nsmallest(most, wanted, key=lambda live: live.submitted)

    def unadmitted(self) -> tuple[int, int]:
        """Requests that wait to be admitted, and the tokens of their prompts; without probes."""
        prompts = [
            live.request.prompt_tokens
            for live in self._live.values()
            if live.admitted is None and not live.closed and not live.request.probe
        ]
        return len(prompts), sum(prompts)

    def unanswered(self) -> int:
        return sum(not live.closed and not live.request.probe for live in self._live.values())

    def holding(self) -> int:
        """Requests that are answered, but not let go of by all ranks."""
        return sum(live.closed for live in self._live.values())

    def late(self, now: float) -> list[str]:
        """Requests past their deadline."""
        return [name for name, live in self._live.items() if now > live.deadline and not live.closed]

    def abort(self, name: str) -> tuple[str | None, Future[PrefillResult] | None]:
        """Mark a request as aborted.

        Returns:
            The id under which the ranks must be told, if they must, and its future if that has to fail.
        """
        live = self._live.get(name)
        if live is None or live.aborted:
            return None, None
        live.aborted = True
        if live.closed:
            return live.request.request_id, None
        live.closed = True
        self.failed += not live.request.probe
        return live.request.request_id, live.future

    def progress(self, event: Progress, now: float) -> Consequence:
        """Account for what a rank reported of a request; reports on unknown requests are ignored."""
        name = self._names.get(event.request_id)
        if name is None:
            return Consequence()
        live = self._live[name]
        unwanted = on_admitted = None
        match event:
            case Admitted():
                live.admitted = event
                on_admitted = None if live.closed else live.on_admitted
            case Finished():
                live.finished = event
                live.answered = now
            case Released():
                live.released = True
            case HandoffSettled():
                live.settled[event.rank] = RankHandedOff(event.rank, event.outcome, now)
                if event.outcome in ("expired", "failed") and not live.closed:
                    unwanted = name
        answer = None if live.closed else live.result()
        if answer is not None:
            live.closed = True
            if not live.request.probe:
                self.finished += 1
                self.prompt_tokens += answer.prompt_tokens
                self.reused_tokens += answer.reused_tokens
        handed_off = None
        if live.over(self._ranks):
            del self._live[name], self._names[event.request_id]
            handed_off = live.handed_off(self._ranks)
        future = live.future if answer is not None else None
        return Consequence(on_admitted, future, answer, unwanted, handed_off)

    def drop_all(self) -> list[Future[PrefillResult]]:
        """Forget everything; returns the futures that have to fail."""
        futures = [live.future for live in self._live.values() if not live.closed]
        self._live.clear()
        self._names.clear()
        self.failed += len(futures)
        return futures

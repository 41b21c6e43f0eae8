"""What rank 0 puts into its rounds, and what follows from their outcomes. Pure: no clock, no sockets."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass
from itertools import islice

from wavepp_worker.block_keys import BlockKeys
from wavepp_worker.runtime.admission.order import CacheView, PrefixOrder
from wavepp_worker.runtime.admission.outcome import RoundOutcome
from wavepp_worker.runtime.admission.queue import MOST_COUNTED, AdmissionQueue
from wavepp_worker.runtime.admission.work import Admission, Work
from wavepp_worker.runtime.protocol.commands import RankTask
from wavepp_worker.runtime.protocol.lane_events import (
    LaneAborted,
    LaneEnded,
    LaneMaterialised,
    LaneProgress,
    LaneScheduled,
)
from wavepp_worker.runtime.protocol.rank_config import RankConfig
from wavepp_worker.runtime.protocol.requests import Arrival
from wavepp_worker.runtime.protocol.rounds import Plan
from wavepp_worker.runtime.protocol.whereabouts import Preparing, Queued, Running

MAX_KEY_BYTES_PER_ROUND = 4 << 20
"""Keys that one round announces: a burst of long prompts would hold up what the others of a round wait for."""


@dataclass(frozen=True)
class RoundResult:
    """What a round brought: requests that may run now, and requests that all ranks have let go of."""

    admissions: tuple[Admission, ...]
    released: tuple[str, ...]


class RoundPlanner:
    """Decides what each round is about; what comes of it is computed by every rank alike.

    Times are seconds on the caller's clock.
    """

    def __init__(self, queue: AdmissionQueue, *, leases: bool) -> None:
        """``leases``: a request counts against the limit until its blocks are its own, else until all of it
        is scheduled."""
        self._queue = queue
        self._leases = leases
        self._aborted: list[LaneAborted] = []
        self._round_id = 0
        self._arrivals: OrderedDict[str, tuple[Arrival, float]] = OrderedDict()
        self._release: list[str] = []
        self._tasks: list[RankTask] = []
        self._stop = False
        self._running: set[str] = set()

    @property
    def waiting(self) -> int:
        """Requests that are not admitted yet."""
        return len(self._queue) + len(self._arrivals)

    def waiting_tokens(self) -> int:
        """Tokens that they will compute, as far as is known."""
        return self._queue.waiting_tokens() + sum(
            arrival.prompt_tokens for arrival, _ in islice(self._arrivals.values(), MOST_COUNTED)
        )

    @property
    def running(self) -> int:
        """Admitted requests that some wave carries or will carry."""
        return len(self._running)

    def submit(self, request: Arrival, now: float) -> None:
        self._arrivals[request.request_id] = (request, now)

    def abort(self, request_id: str) -> None:
        """Let go of a request: at once if it is not admitted, else when its lane has ended."""
        if self._arrivals.pop(request_id, None) is not None or self._queue.withdraw(request_id):
            self._release.append(request_id)
        else:
            self._aborted.append(LaneAborted(request_id, self._queue.abort(request_id)))

    def take_aborted(self) -> tuple[LaneAborted, ...]:
        """What the LOOP thread has to hear of requests that have lost their owner."""
        aborted = (*self._aborted, *(LaneAborted(*each) for each in self._queue.take_lowered()))
        self._aborted.clear()
        return aborted

    def task(self, task: RankTask) -> None:
        """Have every rank do this in the next round that may have news."""
        self._tasks.append(task)

    def stop(self) -> None:
        self._stop = True

    def lane_progressed(self, event: LaneProgress) -> None:
        """Account for what the LOOP thread did with a lane."""
        match event:
            case LaneMaterialised(request_id):
                self._queue.materialised(request_id)
                if self._leases:
                    self._queue.leave(request_id)
            case LaneScheduled(request_id):
                self._queue.leave(request_id)
            case LaneEnded(request_id, aborted):
                self._running.discard(request_id)
                self._queue.ended(request_id)
                self._queue.freed()
                if aborted:
                    self._release.append(request_id)

    def due(self, now: float) -> float:
        """When the next round is due; infinity if that depends on an event."""
        return now if self._news() else self._queue.due(now)

    def next_plan(
        self,
        now: float,
        unreserved_tokens: float = math.inf,
        cache: CacheView | None = None,
    ) -> Plan | None:
        """The next round, or None if there is nothing to do. Its outcome goes to ``apply`` before the next.

        ``unreserved_tokens`` and ``cache``: see ``AdmissionQueue.work``.
        """
        halfway = self._queue.halfway
        news = self._news() and not halfway
        arrivals = self._announce() if news else ()
        # In lockstep, looking up stops the executors until the round after it: nothing may come between.
        work = Work() if news and self._queue.lockstep else self._queue.work(now, unreserved_tokens, cache)
        if not (news or work or halfway):
            return None
        plan = Plan(
            round_id=self._round_id,
            arrivals=arrivals,
            release=tuple(self._release) if news else (),
            hint=work.hint,
            prepare=work.prepare,
            exempt=work.exempt,
            reconcile=work.reconcile,
            tasks=tuple(self._tasks) if news else (),
            stop=news and self._stop,
        )
        self._round_id += 1
        if news:
            self._release.clear()
            self._tasks.clear()
        return plan

    def apply(self, plan: Plan, outcome: RoundOutcome, now: float) -> RoundResult:
        """Account for a round's outcome."""
        admissions = tuple(self._queue.apply(outcome, now))
        self._running.update(admission.request_id for admission in admissions)
        if plan.release:
            self._queue.freed()
        return RoundResult(admissions, plan.release)

    def whereabouts(
        self, request_ids: Collection[str], now: float, unreserved_tokens: float
    ) -> list[Queued | Preparing | Running]:
        """Where those of these requests are that are not over; changes nothing.

        ``unreserved_tokens``: see ``AdmissionQueue.work``.
        """
        found: list[Queued | Preparing | Running] = [
            Queued(
                request_id=request_id,
                seconds=now - arrived,
                because="announcing",
                ahead=len(self._queue) + place,
                priority=arrival.priority,
            )
            for place, (request_id, (arrival, arrived)) in enumerate(self._arrivals.items())
            if request_id in request_ids
        ]
        found += self._queue.whereabouts(request_ids, now, unreserved_tokens)
        running = (request_id for request_id in request_ids if request_id in self._running)
        return [*found, *(Running(request_id=each, writer=self._queue.writer_of(each)) for each in running)]

    def check(self) -> None:
        """Raise ValueError unless the books are consistent."""
        self._queue.check()

    def _announce(self) -> tuple[Arrival, ...]:
        """Take the first arrivals, of ``MAX_KEY_BYTES_PER_ROUND`` or one request, into the queue."""
        announced: list[Arrival] = []
        size = 0
        while self._arrivals:
            request, arrived = next(iter(self._arrivals.values()))
            size += len(request.keys)
            if announced and size > MAX_KEY_BYTES_PER_ROUND:
                break
            self._arrivals.popitem(last=False)
            self._queue.arrive(
                request.request_id, request.prompt_tokens, arrived, BlockKeys(request.keys), request.priority
            )
            announced.append(request)
        return tuple(announced)

    def _news(self) -> bool:
        return bool(self._arrivals or self._release or self._tasks or self._stop)


def make_round_planner(config: RankConfig) -> RoundPlanner:
    """What rank 0 plans admission rounds with."""
    headroom = config.headroom_blocks * config.block_size if config.leases else 0
    queue = AdmissionQueue(
        config.max_num_seqs,
        lockstep=config.lockstep,
        headroom_tokens=headroom,
        block_size=config.block_size if config.leases and not config.lockstep else 0,
        order=PrefixOrder(
            config.order_max_passed_tokens, config.block_size, config.ranks, config.max_num_batched_tokens
        )
        if config.order == "prefix"
        else None,
    )
    return RoundPlanner(queue, leases=config.leases)

"""The WAVE thread of every rank as turns: messages and the time in, messages out. No sockets, threads or clock."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from wavepp_worker.cache.rank_cache import RankCache
from wavepp_worker.errors import EngineDead, PositionMismatch
from wavepp_worker.runtime.admission.actions import RoundActions
from wavepp_worker.runtime.admission.ballot import Ballot
from wavepp_worker.runtime.admission.round_planner import RoundPlanner
from wavepp_worker.runtime.admission.work import Admission
from wavepp_worker.runtime.protocol.commands import (
    Abort,
    Audit,
    Clear,
    Command,
    Dump,
    Explain,
    StartProfile,
    Stop,
    StopProfile,
    Submit,
)
from wavepp_worker.runtime.protocol.events import AdmissionExplained, Admitted, Event, Released
from wavepp_worker.runtime.protocol.lane_events import (
    NOBODY,
    LaneAdmitted,
    LaneMessage,
    LaneProgress,
    RequestsWaiting,
)
from wavepp_worker.runtime.protocol.requests import Arrival
from wavepp_worker.runtime.protocol.rounds import Plan, RoundMessage, Tally, Vote
from wavepp_worker.runtime.state.reports import RankReports
from wavepp_worker.runtime.state.request_table import RequestTable

HEARTBEAT_SECONDS = 0.5


@dataclass(frozen=True)
class LeaderWaveEffects:
    """What rank 0's WAVE thread sends after a turn.

    Attributes:
        to_loop: to the LOOP thread, in order.
        events: to the engine, in order.
        plan: to all ranks: a round has begun, and this rank has to vote on it too.
    """

    to_loop: tuple[LaneMessage, ...] = ()
    events: tuple[Event, ...] = ()
    plan: Plan | None = None


class LeaderWave:
    """Rank 0: takes commands, runs rounds, and feeds the LOOP thread with admitted requests.

    Between a turn that returns a plan and ``close`` a round is open: this rank and all others vote, and
    commands wait. Times are seconds on the caller's clock.
    """

    def __init__(
        self,
        planner: RoundPlanner,
        actions: RoundActions,
        requests: RequestTable,
        reports: RankReports,
        cache: RankCache,
        ranks: int,
        heartbeat_seconds: float = math.inf,
    ) -> None:
        self._planner = planner
        self._actions = actions
        self._requests = requests
        self._reports = reports
        self._cache = cache
        self._ranks = ranks
        self._heartbeat_seconds = heartbeat_seconds
        self._next_beat = 0.0 if math.isfinite(heartbeat_seconds) else math.inf
        self._ballot: Ballot | None = None
        self._tally: Tally | None = None
        self._told = NOBODY
        self.stopped = False
        """Whether the round that told all ranks to leave is over."""

    def due(self, now: float) -> float:
        """When the next turn has something to do although no message comes."""
        return min(self._next_beat, self._planner.due(now))

    def turn(self, messages: Iterable[Command | LaneProgress], now: float) -> LeaderWaveEffects:
        """Take what arrived since the last turn, and begin a round if there is something to agree on."""
        if self._ballot is not None:
            raise PositionMismatch(
                f"round {self._ballot.plan.round_id} is open; messages wait until it is closed"
            )
        questions: list[Explain] = []
        for message in messages:
            match message:
                case Submit(request=request, keys=keys):
                    self._requests.submitted(request)
                    self._planner.submit(Arrival.of(request, keys), now)
                case Abort(request_id=request_id):
                    self._planner.abort(request_id)
                case Audit() | Clear() | StartProfile() | StopProfile():
                    self._planner.task(message)
                case Explain():
                    questions.append(message)
                case Dump():
                    self.dump(message)
                case Stop():
                    self._planner.stop()
                case _:
                    self._planner.lane_progressed(message)
        events: tuple[Event, ...] = ()
        if now >= self._next_beat:
            self._next_beat = now + self._heartbeat_seconds
            events = (self._reports.heartbeat(self._planner.waiting, self._planner.running),)
        explained = tuple(self.explain(question, now) for question in questions)
        plan = self._planner.next_plan(now, self._cache.unreserved_tokens(), self._cache)
        if plan is not None:
            self._ballot = Ballot(plan, self._ranks)
        to_loop: tuple[LaneMessage, ...] = (*self._tell_waiting(), *self._planner.take_aborted(), *questions)
        return LeaderWaveEffects(to_loop, (*events, *explained), plan)

    def explain(self, question: Explain, now: float) -> AdmissionExplained:
        """Where requests are; at any time, also while a round is open. The LOOP thread has to be asked as well."""
        ballot = self._ballot
        return AdmissionExplained(
            question_id=question.question_id,
            requests=tuple(
                self._planner.whereabouts(question.request_ids, now, self._cache.unreserved_tokens())
            ),
            round_id=None if ballot is None else ballot.plan.round_id,
            missing=() if ballot is None else ballot.missing,
        )

    def dump(self, dump: Dump) -> None:
        """Have this rank say what it holds; at any time, as ``explain``. The others have to be asked as well."""
        self._actions.dump(dump)

    def vote(self) -> Tally | None:
        """Act on the open round's plan and cast this rank's vote; see ``cast``."""
        return self.cast(self._actions.vote(self._open().plan))

    def cast(self, vote: Vote) -> Tally | None:
        """Count a rank's vote; returns the tally, to be sent to all ranks before ``close``, once it is the last.

        Raises:
            PositionMismatch: it is not a vote on the open round that was still missing.
        """
        self._tally = self._open().cast(vote)
        return self._tally

    def close(self, now: float) -> LeaderWaveEffects:
        """Apply the outcome of the open round, on which every rank has voted."""
        plan, tally = self._open().plan, self._tally
        if tally is None:
            raise PositionMismatch(f"round {plan.round_id} is to be closed before every rank has voted")
        outcome = self._actions.apply(plan, tally)
        result = self._planner.apply(plan, outcome, now)
        self._ballot = self._tally = None
        self.stopped = plan.stop
        lanes = tuple(self._lane(admission) for admission in result.admissions)
        admitted = tuple(_event(admission) for admission in result.admissions)
        released = tuple(Released(request_id=request_id) for request_id in result.released)
        return LeaderWaveEffects(
            (*self._tell_waiting(), *lanes, *self._planner.take_aborted()), (*admitted, *released)
        )

    def check(self) -> None:
        """Raise ValueError unless the books are consistent."""
        self._planner.check()

    def _open(self) -> Ballot:
        if self._ballot is None:
            raise PositionMismatch("no round is open")
        return self._ballot

    def _tell_waiting(self) -> tuple[RequestsWaiting, ...]:
        waiting = RequestsWaiting(self._planner.waiting, self._planner.waiting_tokens())
        if waiting == self._told:
            return ()
        self._told = waiting
        return (waiting,)

    def _lane(self, admission: Admission) -> LaneAdmitted:
        request = self._requests.known(admission.request_id).whole
        return LaneAdmitted(
            admission.request_id,
            admission.endpoint,
            request.prompt_tokens,
            request.probe,
            after=admission.after,
        )


def _event(admission: Admission) -> Admitted:
    return Admitted(
        request_id=admission.request_id,
        endpoint=admission.endpoint,
        queued=admission.queued,
        admission=admission.admission,
        at=admission.at,
        discovery=admission.discovery,
        attempts=admission.attempts,
    )


@dataclass(frozen=True)
class FollowerWaveEffects:
    """What another rank's WAVE thread sends after a turn.

    Attributes:
        vote: to rank 0.
        admitted: to the LOOP thread: requests that all ranks have committed.
        events: to the engine.
    """

    vote: Vote | None = None
    admitted: tuple[str, ...] = ()
    events: tuple[Event, ...] = ()


class FollowerWave:
    """Ranks 1 … P-1: vote on rank 0's plans, and apply the outcome that follows from the tally."""

    def __init__(
        self,
        actions: RoundActions,
        reports: RankReports,
        timeout: float,
        heartbeat_seconds: float = math.inf,
    ) -> None:
        """``timeout``: seconds the tally may take from the first turn without a message after this rank's vote."""
        self._actions = actions
        self._reports = reports
        self._timeout = timeout
        self._heartbeat_seconds = heartbeat_seconds
        self._next_beat = 0.0 if math.isfinite(heartbeat_seconds) else math.inf
        self._next_round = 0
        self._plan: Plan | None = None
        self._tally_due = math.inf
        self.stopped = False
        """Whether the round that told all ranks to leave is over."""

    def due(self) -> float:
        """When the next turn has something to do although no message comes."""
        if self._plan is not None and math.isinf(self._tally_due):
            return 0.0
        return min(self._next_beat, self._tally_due)

    def turn(self, message: RoundMessage | None, now: float) -> FollowerWaveEffects:
        """Take what rank 0 sent, if it sent something.

        Raises:
            PositionMismatch: it is neither a dump nor the plan or tally that comes next.
            EngineDead: the tally is overdue.
        """
        events: tuple[Event, ...] = ()
        if now >= self._next_beat:
            self._next_beat = now + self._heartbeat_seconds
            events = (self._reports.heartbeat(waiting=0, running=0),)
        plan = self._plan
        match message:
            case None:
                if plan is not None and math.isinf(self._tally_due):
                    # Not from the plan's arrival: the vote itself may take long, and is not the others' doing.
                    self._tally_due = now + self._timeout
                if now >= self._tally_due:
                    raise EngineDead(
                        f"the tally of round {self._next_round} did not arrive within {self._timeout:.0f} s"
                    )
                return FollowerWaveEffects(events=events)
            case Dump():
                self._actions.dump(message)
                return FollowerWaveEffects(events=events)
            case Plan() if plan is None and message.round_id == self._next_round:
                self._plan = message
                return FollowerWaveEffects(self._actions.vote(message), events=events)
            case Tally() if plan is not None and message.round_id == self._next_round:
                outcome = self._actions.apply(plan, message)
                self._plan, self._tally_due = None, math.inf
                self._next_round += 1
                self.stopped = plan.stop
                return FollowerWaveEffects(
                    None, tuple(admit.request_id for admit in outcome.admitted), events
                )
            case _:
                expected = "plan" if plan is None else "tally"
                raise PositionMismatch(f"expected the {expected} of round {self._next_round}, got {message}")

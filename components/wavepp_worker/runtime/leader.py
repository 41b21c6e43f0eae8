"""The WAVE thread of rank 0: takes commands, forms plans, and feeds the planner with admitted requests."""

from __future__ import annotations

import time
from collections import OrderedDict, deque

import zmq

from wavepp_worker.runtime.admission import agreed_endpoints
from wavepp_worker.runtime.follower import HEARTBEAT_SECONDS
from wavepp_worker.runtime.local_state import LocalState
from wavepp_worker.runtime.lockstep import LockstepAdmission
from wavepp_worker.runtime.messages import PrefillRequest
from wavepp_worker.runtime.protocol import (
    Abort,
    Admit,
    Admitted,
    Audit,
    Codec,
    Plan,
    Released,
    Stop,
    Submit,
    Vote,
)
from wavepp_worker.runtime.rounds import LeaderRounds
from wavepp_worker.runtime.threads import Inbox, LaneAborted, LaneAdmitted, LaneEnded

RETRY_SECONDS = 0.005
"""How soon admission tries again for a request that found no room, if nothing was freed on rank 0."""


class Leader:
    """First come, first served: the head of the queue is admitted before anybody behind it (promise 9)."""

    def __init__(
        self,
        state: LocalState,
        rounds: LeaderRounds,
        admission: LockstepAdmission,
        commands: zmq.Socket[bytes],
        inbox: Inbox[LaneEnded],
        executor: Inbox[LaneAdmitted | LaneAborted],
    ) -> None:
        self._state = state
        self._rounds = rounds
        self._admission = admission
        self._commands = commands
        self._inbox = inbox
        self._executor = executor
        self._round_id = 0
        self._arrivals: list[PrefillRequest] = []
        self._release: list[str] = []
        self._audits: deque[int] = deque()
        self._stop = False
        self._waiting: OrderedDict[str, float] = OrderedDict()
        self._running: set[str] = set()
        self._retry_at = 0.0

    def run(self) -> None:
        """Serve until told to stop."""
        poller = zmq.Poller()
        poller.register(self._commands, zmq.POLLIN)
        poller.register(self._inbox.socket, zmq.POLLIN)
        next_beat = 0.0
        while not self._state.stopping.is_set():
            poller.poll(int(1000 * self._sleep(next_beat)))
            self._take_commands()
            self._take_executor_events()
            if self._arrivals or self._release or self._audits or self._stop:
                self._announce()
            self._admit()
            if time.monotonic() >= next_beat:
                self._state.heartbeat(waiting=len(self._waiting), running=len(self._running))
                next_beat = time.monotonic() + HEARTBEAT_SECONDS

    def _sleep(self, next_beat: float) -> float:
        until = next_beat
        if self._candidates():
            until = min(until, self._retry_at)
        return max(0.0, until - time.monotonic())

    def _take_commands(self) -> None:
        while self._commands.poll(0):
            command = Codec.command.decode(self._commands.recv())
            match command:
                case Submit(request=request):
                    self._arrivals.append(request)
                    self._waiting[request.request_id] = time.monotonic()
                case Abort(request_id=request_id):
                    self._abort(request_id)
                case Audit(audit_id=audit_id):
                    self._audits.append(audit_id)
                case Stop():
                    self._stop = True

    def _abort(self, request_id: str) -> None:
        if request_id in self._waiting:
            del self._waiting[request_id]
            self._release.append(request_id)
        else:
            self._executor.put(LaneAborted(request_id))

    def _take_executor_events(self) -> None:
        for event in self._inbox.take():
            self._running.discard(event.request_id)
            self._retry_at = 0.0
            if event.aborted:
                self._release.append(event.request_id)

    def _announce(self) -> None:
        """A round without admission: arrivals, releases, audits."""
        arrivals, self._arrivals = tuple(self._arrivals), []
        release, self._release = tuple(self._release), []
        audit_id = self._audits.popleft() if self._audits else None
        self._round(arrivals=arrivals, release=release, audit_id=audit_id, stop=self._stop)
        for request_id in release:
            self._state.events.send(Released(request_id=request_id))
        if release:
            self._retry_at = 0.0

    def _candidates(self) -> list[str]:
        room = self._state.config.max_batch - len(self._running)
        return list(self._waiting)[: max(0, room)]

    def _admit(self) -> None:
        """Two rounds for the head of the queue: walk, then pin and allocate at the common endpoint."""
        candidates = self._candidates()
        if not candidates or time.monotonic() < self._retry_at or self._state.stopping.is_set():
            return
        begun = time.monotonic()
        walk, votes, _ = self._round(walk=tuple(candidates))
        _, _, admitted = self._round(admit=agreed_endpoints(walk, votes))
        now = time.monotonic()
        for admit in admitted:
            arrived = self._waiting.pop(admit.request_id)
            self._running.add(admit.request_id)
            local = self._state.requests.get(admit.request_id)
            assert local is not None, "an admitted request stays known until its lane has ended"
            self._executor.put(LaneAdmitted(admit.request_id, admit.endpoint, local.request.prompt_tokens))
            self._state.events.send(
                Admitted(
                    request_id=admit.request_id,
                    endpoint=admit.endpoint,
                    queued=begun - arrived,
                    admission=now - begun,
                )
            )
        self._retry_at = 0.0 if len(admitted) == len(candidates) else now + RETRY_SECONDS

    def _round(
        self,
        arrivals: tuple[PrefillRequest, ...] = (),
        release: tuple[str, ...] = (),
        walk: tuple[str, ...] = (),
        admit: tuple[Admit, ...] = (),
        audit_id: int | None = None,
        stop: bool = False,
    ) -> tuple[Plan, tuple[Vote, ...], tuple[Admit, ...]]:
        plan = Plan(
            round_id=self._round_id,
            arrivals=arrivals,
            release=release,
            walk=walk,
            admit=admit,
            audit_id=audit_id,
            stop=stop,
        )
        self._round_id += 1
        votes = self._rounds.run(plan, self._admission.vote)
        return plan, votes, self._admission.apply(plan, votes)

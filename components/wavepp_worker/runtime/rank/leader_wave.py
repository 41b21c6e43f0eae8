"""The WAVE thread of rank 0: takes commands, runs rounds, and feeds the planner with admitted requests."""

from __future__ import annotations

import math
import time

import zmq

from wavepp_worker.runtime.admission.queue import Admission
from wavepp_worker.runtime.admission.round_actions import RoundActions
from wavepp_worker.runtime.admission.round_planner import RoundPlanner
from wavepp_worker.runtime.admission.rounds_plane import LeaderRounds
from wavepp_worker.runtime.protocol.codec import Codec
from wavepp_worker.runtime.protocol.commands import Abort, Audit, Stop, Submit
from wavepp_worker.runtime.protocol.events import Admitted, Released
from wavepp_worker.runtime.protocol.inbox import Inbox
from wavepp_worker.runtime.protocol.lane_events import LaneAborted, LaneAdmitted, LaneAdvance
from wavepp_worker.runtime.protocol.rounds import Plan, Vote
from wavepp_worker.runtime.rank.follower import HEARTBEAT_SECONDS
from wavepp_worker.runtime.state.local_state import LocalState


class Leader:
    """Carries messages between the engine, the rounds plane, the LOOP thread and the ``RoundPlanner``."""

    def __init__(
        self,
        state: LocalState,
        rounds: LeaderRounds,
        actions: RoundActions,
        planner: RoundPlanner,
        commands: zmq.Socket[bytes],
        inbox: Inbox[LaneAdvance],
        executor: Inbox[LaneAdmitted | LaneAborted],
    ) -> None:
        self._state = state
        self._rounds = rounds
        self._actions = actions
        self._planner = planner
        self._commands = commands
        self._inbox = inbox
        self._executor = executor

    def run(self) -> None:
        """Serve until told to stop."""
        poller = zmq.Poller()
        poller.register(self._commands, zmq.POLLIN)
        poller.register(self._inbox.socket, zmq.POLLIN)
        next_beat = 0.0
        while not self._state.stopping.is_set():
            now = time.monotonic()
            until = min(next_beat, self._planner.due(now))
            poller.poll(max(0, math.ceil(1000 * (until - now))))
            self._take_commands()
            for event in self._inbox.take():
                self._planner.advance(event)
            if (
                plan := self._planner.next_plan(time.monotonic(), self._state.cache.unreserved_tokens())
            ) is not None:
                self._run_round(plan)
            if time.monotonic() >= next_beat:
                self._state.heartbeat(waiting=self._planner.waiting, running=self._planner.running)
                next_beat = time.monotonic() + HEARTBEAT_SECONDS

    def _take_commands(self) -> None:
        while self._commands.poll(0):
            command = Codec.command.decode(self._commands.recv())
            match command:
                case Submit(request=request):
                    self._planner.submit(request, time.monotonic())
                case Abort(request_id=request_id):
                    if not self._planner.abort(request_id):
                        self._executor.put(LaneAborted(request_id))
                case Audit(audit_id=audit_id):
                    self._planner.audit(audit_id)
                case Stop():
                    self._planner.stop()

    def _run_round(self, plan: Plan) -> None:
        timeline = self._state.timeline
        begun = timeline.now()

        def vote(plan: Plan) -> Vote:
            timeline.record("admission", "broadcast", begun, timeline.now())
            return self._actions.vote(plan)

        outcome = self._actions.apply(plan, self._rounds.run(plan, vote))
        result = self._planner.apply(plan, outcome, time.monotonic())
        for admission in result.admissions:
            self._start(admission)
        for request_id in result.released:
            self._state.events.send(Released(request_id=request_id))

    def _start(self, admission: Admission) -> None:
        request_id = admission.request_id
        prompt_tokens = self._state.requests.known(request_id).request.prompt_tokens
        self._executor.put(LaneAdmitted(request_id, admission.endpoint, prompt_tokens))
        self._state.events.send(
            Admitted(
                request_id=request_id,
                endpoint=admission.endpoint,
                queued=admission.queued,
                admission=admission.admission,
            )
        )

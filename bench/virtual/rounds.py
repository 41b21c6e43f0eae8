"""Admission rounds of a replica on the virtual clock: rank 0's WAVE thread, and the followers' votes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from wavepp_worker.runtime.admission.queue import Admission
from wavepp_worker.runtime.admission.round_planner import make_round_planner
from wavepp_worker.runtime.protocol.codec import Codec
from wavepp_worker.runtime.protocol.commands import Submit
from wavepp_worker.runtime.protocol.lane_events import LaneAdvance
from wavepp_worker.runtime.protocol.message import encode
from wavepp_worker.runtime.protocol.rank_config import RankConfig
from wavepp_worker.runtime.protocol.requests import PrefillRequest
from wavepp_worker.runtime.protocol.rounds import Plan, Tally, Vote

from bench.virtual.host import Effect, Events
from bench.virtual.rank import VirtualRank


class VirtualRounds:
    """What ``runtime.leader`` and ``runtime.rounds`` do between processes, as events.

    Attributes:
        planner: the production planner of rounds.
        count: rounds since it was last set to 0.
        on_admitted: called with what a round brought to rank 0.
        on_news: called with a rank whose LOOP has something to look at.
    """

    def __init__(
        self, events: Events, ranks: Sequence[VirtualRank], config: RankConfig, latency: float
    ) -> None:
        self.planner = make_round_planner(config)
        self.count = 0
        self.on_admitted: Callable[[Sequence[Admission]], None] = lambda admissions: None
        self.on_news: Callable[[VirtualRank], None] = lambda rank: None
        self._events, self._ranks = events, ranks
        self._latency, self._delay = latency, config.round_delay
        self._commands: list[bytes] = []
        self._advances: list[LaneAdvance] = []
        self._votes: dict[int, bytes] = {}
        self._in_round = False
        self._turn_due = False
        self._timer = math.inf

    def submit(self, request: PrefillRequest) -> None:
        """Send a request to rank 0."""
        self._events.after(self._latency, self._commanded, encode(Submit(request=request)))

    def advance(self, advances: Sequence[LaneAdvance]) -> None:
        """What rank 0's LOOP did with lanes."""
        if advances:
            self._advances += advances
            self._wake()

    def _commanded(self, command: bytes) -> None:
        self._commands.append(command)
        self._wake()

    def _wake(self) -> None:
        if not (self._in_round or self._turn_due):
            self._turn_due = True
            self._ranks[0].host.do(self._turn)

    def _turn(self) -> Effect:
        self._turn_due = False
        now, planner = self._events.now, self.planner
        commands, self._commands = self._commands, []
        for encoded in commands:
            command = Codec.command.decode(encoded)
            assert isinstance(command, Submit)
            planner.submit(command.request, now)
        advances, self._advances = self._advances, []
        for advance in advances:
            planner.advance(advance)
        plan = planner.next_plan(now, self._ranks[0].state.cache.unreserved_tokens())
        if plan is None:
            due = planner.due(now)
            if due != self._timer and math.isfinite(due):
                self._timer = due
                return lambda: self._events.at(due, self._wake)
            return None
        self._in_round = True
        self._votes = {}
        message = encode(plan)
        return lambda: self._broadcast(plan, message)

    def _broadcast(self, plan: Plan, message: bytes) -> None:
        self.count += 1
        for rank in self._ranks[1:]:
            self._events.after(self._latency, rank.host.do, lambda rank=rank: self._vote(rank, message))
        self._ranks[0].host.do(lambda: self._lead(plan))

    def _lead(self, plan: Plan) -> Effect:
        vote = encode(self._ranks[0].actions.vote(plan))
        return lambda: self._collect(plan, 0, vote)

    def _vote(self, rank: VirtualRank, message: bytes) -> Effect:
        plan = Codec.round.decode(message)
        assert isinstance(plan, Plan)
        vote = encode(rank.actions.vote(plan))
        return lambda: self._events.after(self._latency, self._collect, plan, rank.config.rank, vote)

    def _collect(self, plan: Plan, rank: int, vote: bytes) -> None:
        self._votes[rank] = vote
        if len(self._votes) == len(self._ranks):
            self._events.after(self._delay, self._ranks[0].host.do, lambda: self._decide(plan))

    def _decide(self, plan: Plan) -> Effect:
        leader = self._ranks[0]
        votes = [_decoded(self._votes[rank.config.rank]) for rank in self._ranks]
        tally = encode(Tally(round_id=plan.round_id, votes=tuple(votes)))
        outcome = leader.actions.apply(plan, votes)
        result = self.planner.apply(plan, outcome, self._events.now)

        def tell() -> None:
            for rank in self._ranks[1:]:
                self._events.after(
                    self._latency, rank.host.do, lambda rank=rank: self._apply(rank, plan, tally)
                )
            self.on_admitted(result.admissions)
            self._in_round = False
            self._wake()
            self.on_news(leader)

        return tell

    def _apply(self, rank: VirtualRank, plan: Plan, tally: bytes) -> Effect:
        decoded = Codec.round.decode(tally)
        assert isinstance(decoded, Tally)
        outcome = rank.actions.apply(plan, decoded.votes)

        def tell() -> None:
            for admit in outcome.admitted:
                rank.admitted.append(admit.request_id)
                rank.admitted_at[admit.request_id] = self._events.now
            self.on_news(rank)

        return tell


def _decoded(vote: bytes) -> Vote:
    decoded = Codec.round.decode(vote)
    assert isinstance(decoded, Vote)
    return decoded

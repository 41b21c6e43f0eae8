"""The WAVE threads of a replica on the virtual clock: production's turns, and messages that take a while."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from wavepp_worker.block_keys import SECRET_BYTES, BlockKeyMaker
from wavepp_worker.runtime.admission.round_planner import RoundPlanner
from wavepp_worker.runtime.protocol.codec import Codec
from wavepp_worker.runtime.protocol.commands import Command, Submit
from wavepp_worker.runtime.protocol.lane_events import (
    LaneMessage,
    LaneProgress,
)
from wavepp_worker.runtime.protocol.message import encode
from wavepp_worker.runtime.protocol.rank_config import RankConfig
from wavepp_worker.runtime.protocol.requests import PrefillRequest
from wavepp_worker.runtime.protocol.rounds import Tally, Vote
from wavepp_worker.runtime.rank.wave_turn import FollowerWave, LeaderWave

from bench.virtual.host import Effect, Events, Host
from bench.virtual.rank import VirtualRank


class VirtualRounds:
    """Drives ``LeaderWave`` and every ``FollowerWave`` as ``runtime.rank.wave_thread`` does between processes.

    Attributes:
        leader: the WAVE thread of rank 0.
        count: rounds since it was last set to 0.
        to_loop: called with what rank 0's LOOP has to hear, once it can.
        on_admitted: called with a rank and what another rank's LOOP has to hear, once it can.
    """

    def __init__(
        self,
        events: Events,
        ranks: Sequence[VirtualRank],
        config: RankConfig,
        planner: RoundPlanner,
        latency: float,
        charge: float,
    ) -> None:
        first = ranks[0].parts
        self.leader = LeaderWave(
            planner,
            first.actions,
            first.requests,
            first.reports,
            first.cache,
            config.ranks,
        )
        self.count = 0
        self.to_loop: Callable[[Sequence[LaneMessage]], None] = lambda _: None
        self.on_admitted: Callable[[VirtualRank, Sequence[str]], None] = lambda rank, requests: None
        self._followers = [
            FollowerWave(rank.parts.actions, rank.parts.reports, config.wait) for rank in ranks[1:]
        ]
        self._events, self._ranks = events, ranks
        self._latency, self._delay = latency, config.round_delay
        self._engine = Host(events, charge)
        self._maker = BlockKeyMaker(bytes(SECRET_BYTES), config.model_id, config.block_size)
        self._commands: list[bytes] = []
        self._progress: list[LaneProgress] = []
        self._votes: list[bytes] = []
        self._missing = 0
        self._tally: Tally | None = None
        self._in_round = False
        self._turn_due = False
        self._timer = math.inf

    def submit(self, request: PrefillRequest) -> None:
        """Have the engine work a request's keys out and send both to rank 0, after all that came before."""

        def work() -> Effect:
            keys = self._maker.keys(request.tokens, request.salt, request.lora)
            command = encode(Submit(request=request, keys=keys))
            return lambda: self._events.after(self._latency, self._commanded, command)

        self._engine.do(work)

    def progressed(self, progress: Sequence[LaneProgress]) -> None:
        """What rank 0's LOOP did with lanes."""
        if progress:
            self._progress += progress
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
        encoded, self._commands = self._commands, []
        commands: list[Command] = [Codec.command.decode(each) for each in encoded]
        progress, self._progress = self._progress, []
        effects = self.leader.turn([*commands, *progress], self._events.now)
        if effects.plan is None:
            due = self.leader.due(self._events.now)
            timer = due if due != self._timer and math.isfinite(due) else None
            self._timer = self._timer if timer is None else timer

            def rest() -> None:
                self.to_loop(effects.to_loop)
                if timer is not None:
                    self._events.at(timer, self._wake)

            return rest
        self._in_round = True
        self._votes, self._missing, self._tally = [], len(self._ranks), None
        message = encode(effects.plan)

        def broadcast() -> None:
            self.to_loop(effects.to_loop)
            self._broadcast(message)

        return broadcast

    def _broadcast(self, message: bytes) -> None:
        self.count += 1
        for rank, follower in zip(self._ranks[1:], self._followers, strict=True):
            self._events.after(self._latency, rank.host.do, partial(self._vote, rank, follower, message))
        self._ranks[0].host.do(self._lead)

    def _lead(self) -> Effect:
        self._tally = self.leader.vote()
        return self._voted

    def _vote(self, rank: VirtualRank, follower: FollowerWave, message: bytes) -> Effect:
        effects = follower.turn(Codec.round.decode(message), self._events.now)
        assert effects.vote is not None
        vote = encode(effects.vote)
        return lambda: self._events.after(self._latency, self._collect, vote)

    def _collect(self, vote: bytes) -> None:
        self._votes.append(vote)
        self._voted()

    def _voted(self) -> None:
        self._missing -= 1
        if not self._missing:
            self._events.after(self._delay, self._ranks[0].host.do, self._close)

    def _close(self) -> Effect:
        for encoded in self._votes:
            vote = Codec.round.decode(encoded)
            assert isinstance(vote, Vote)
            self._tally = self.leader.cast(vote)
        assert self._tally is not None
        tally = encode(self._tally)
        effects = self.leader.close(self._events.now)

        def tell() -> None:
            for rank, follower in zip(self._ranks[1:], self._followers, strict=True):
                self._events.after(self._latency, rank.host.do, partial(self._apply, rank, follower, tally))
            self._in_round = False
            self._wake()
            self.to_loop(effects.to_loop)

        return tell

    def _apply(self, rank: VirtualRank, follower: FollowerWave, tally: bytes) -> Effect:
        effects = follower.turn(Codec.round.decode(tally), self._events.now)
        return lambda: self.on_admitted(rank, effects.admitted)

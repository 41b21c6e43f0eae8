"""The WAVE thread of every rank: carries messages between its turns, the rounds plane and the LOOP thread."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator

import zmq

from wavepp_worker.liveness.watchdog import Watched
from wavepp_worker.runtime.admission.rounds_plane import FollowerRounds, LeaderRounds
from wavepp_worker.runtime.protocol.codec import Codec
from wavepp_worker.runtime.protocol.commands import Command, Dump, Explain
from wavepp_worker.runtime.protocol.inbox import Inbox
from wavepp_worker.runtime.protocol.lane_events import (
    LaneMessage,
    LaneProgress,
    RequestsWaiting,
)
from wavepp_worker.runtime.protocol.rounds import Plan
from wavepp_worker.runtime.rank.wave_turn import FollowerWave, LeaderWave, LeaderWaveEffects
from wavepp_worker.runtime.state.reports import EventSink
from wavepp_worker.runtime.trace.timeline import Timeline


class LeaderWaveThread:
    """Rank 0: commands come from the engine, rounds go over the rounds plane."""

    def __init__(
        self,
        wave: LeaderWave,
        rounds: LeaderRounds,
        commands: zmq.Socket[bytes],
        from_loop: Inbox[LaneProgress],
        to_loop: Inbox[LaneMessage],
        events: EventSink,
        timeline: Timeline,
        watched: Watched,
        turn_seconds: float,
    ) -> None:
        """``turn_seconds``: that a turn may take, without waiting for others, before the thread counts as hung."""
        self._wave = wave
        self._rounds = rounds
        self._commands = commands
        self._from_loop = from_loop
        self._to_loop = to_loop
        self._events = events
        self._timeline = timeline
        self._watched = watched
        self._turn_seconds = turn_seconds
        self._later: list[Command] = []
        rounds.meanwhile(commands, self._answer)

    def run(self, stopping: threading.Event) -> None:
        """Serve until told to stop; then tell the LOOP thread by ``stopping``."""
        poller = zmq.Poller()
        poller.register(self._commands, zmq.POLLIN)
        poller.register(self._from_loop.socket, zmq.POLLIN)
        while not self._wave.stopped:
            now = time.monotonic()
            self._watched.idle()
            poller.poll(0 if self._later else max(0, math.ceil(1000 * (self._wave.due(now) - now))))
            self._watched.busy("its turn", self._turn_seconds)
            commands = [*self._later, *self._passed_on()]
            self._later.clear()
            effects = self._wave.turn([*commands, *self._from_loop.take()], time.monotonic())
            self._send(effects)
            if effects.plan is not None:
                self._run_round(effects.plan)
        stopping.set()

    def _run_round(self, plan: Plan) -> None:
        begun = self._timeline.now()
        self._watched.idle()
        self._rounds.broadcast(plan)
        self._timeline.record("admission", "broadcast", begun, self._timeline.now())
        self._watched.busy(f"its vote on round {plan.round_id}", self._turn_seconds)
        tally = self._wave.vote()
        self._watched.idle()
        for vote in self._rounds.votes(plan.round_id):
            tally = self._wave.cast(vote)
        assert tally is not None, "there is one once every rank has voted"
        self._rounds.broadcast(tally)
        self._watched.busy(f"the outcome of round {plan.round_id}", self._turn_seconds)
        self._send(self._wave.close(time.monotonic()))

    def _passed_on(self) -> Iterator[Command]:
        """What the engine sent; dumps are with the other ranks then, whether or not a round is open."""
        while self._commands.poll(0):
            command = Codec.command.decode(self._commands.recv())
            if isinstance(command, Dump):
                self._rounds.broadcast(command)
            yield command

    def _answer(self) -> None:
        """Answer what is asked while a round is open; all other commands wait until it is over."""
        for command in self._passed_on():
            match command:
                case Explain():
                    self._to_loop.put(command)
                    self._events.send(self._wave.explain(command, time.monotonic()))
                case Dump():
                    self._wave.dump(command)
                case _:
                    self._later.append(command)

    def _send(self, effects: LeaderWaveEffects) -> None:
        for message in effects.to_loop:
            self._to_loop.put(message, wake=not isinstance(message, RequestsWaiting))
        self._events.send(*effects.events)


class FollowerWaveThread:
    """Ranks 1 … P-1: all messages are those of the rounds plane."""

    def __init__(
        self,
        wave: FollowerWave,
        rounds: FollowerRounds,
        to_loop: Inbox[str],
        events: EventSink,
        watched: Watched,
        turn_seconds: float,
    ) -> None:
        """``turn_seconds``: as of ``LeaderWaveThread``."""
        self._wave = wave
        self._rounds = rounds
        self._to_loop = to_loop
        self._events = events
        self._watched = watched
        self._turn_seconds = turn_seconds

    def run(self, stopping: threading.Event) -> None:
        """Take part in every round until one says stop; then tell the LOOP thread by ``stopping``."""
        while not self._wave.stopped:
            self._watched.idle()
            message = self._rounds.receive(self._wave.due() - time.monotonic())
            self._watched.busy("its part of a round", self._turn_seconds)
            effects = self._wave.turn(message, time.monotonic())
            if effects.vote is not None:
                self._rounds.send(effects.vote)
            for request_id in effects.admitted:
                self._to_loop.put(request_id)
            self._events.send(*effects.events)
        stopping.set()

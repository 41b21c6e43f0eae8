"""Real processes that run admission rounds over caches under churn, for ``bench.admission``."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from contextlib import ExitStack
from typing import Any

import msgspec
import zmq
from wavepp_worker.runtime.admission.ballot import Ballot
from wavepp_worker.runtime.admission.outcome import RoundOutcome
from wavepp_worker.runtime.admission.rounds_plane import FollowerRounds, LeaderRounds
from wavepp_worker.runtime.protocol.requests import Arrival, PrefillRequest
from wavepp_worker.runtime.protocol.rounds import Plan
from wavepp_worker.runtime.rank.wave_turn import FollowerWave

from bench.admission.cached_rank import WAIT, CachedRank, key_maker
from bench.admission.long_prompts import LongPrompts
from bench.admission.two_walks import round_actions


class Ranks:
    """Rank 0, and a process for every other rank; they run rounds until the end of the ``with`` block."""

    def __init__(self, traffic: LongPrompts, ranks: int, pause: float, two_walks: bool) -> None:
        self._stack = ExitStack()
        directory = self._stack.enter_context(tempfile.TemporaryDirectory())
        addresses = [f"ipc://{directory}/{number}" for number in range(1, ranks)]
        spawn = multiprocessing.get_context("spawn")
        self._processes = [
            spawn.Process(target=run_follower, args=(number, traffic, address, pause, two_walks), daemon=True)
            for number, address in enumerate(addresses, start=1)
        ]
        for process in self._processes:
            process.start()
        self._context: zmq.Context[Any] = zmq.Context()
        self._plane = LeaderRounds(self._context, addresses, WAIT)
        self.rank = self._stack.enter_context(CachedRank(0, traffic, pause))
        self._actions = round_actions(self.rank, two_walks)
        self._maker = key_maker(traffic)
        self.rounds = 0

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        if error is None:
            self.run(Plan(round_id=0, stop=True))
        self._stack.close()
        self._plane.close()
        self._context.term()
        for process in self._processes:
            process.join(WAIT if error is None else 0)
            if error is None and process.exitcode != 0:
                raise RuntimeError(f"a rank ended with {process.exitcode}")
            process.kill()

    def arrival(self, request: PrefillRequest) -> Arrival:
        """What the ranks are told of a request, its keys made as the engine does."""
        return Arrival.of(request, self._maker.keys(request.tokens))

    def run(self, plan: Plan) -> RoundOutcome:
        """One round, from the encoding of the plan to the outcome; its number is given here."""
        plan = msgspec.structs.replace(plan, round_id=self.rounds)
        ballot = Ballot(plan, 1 + len(self._processes))
        self._plane.broadcast(plan)
        tally = ballot.cast(self._actions.vote(plan))
        for vote in self._plane.votes(plan.round_id):
            tally = ballot.cast(vote)
        assert tally is not None, "every rank has voted"
        self._plane.broadcast(tally)
        outcome = self._actions.apply(plan, tally)
        self.rounds += 1
        self.rank.admitted.extend(admit.request_id for admit in outcome.admitted)
        return outcome


def run_follower(number: int, traffic: LongPrompts, address: str, pause: float, two_walks: bool) -> None:
    """The process of rank ``number``: takes part in every round until one says stop."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    rounds = FollowerRounds(context, address)
    with CachedRank(number, traffic, pause) as rank:
        wave = FollowerWave(round_actions(rank, two_walks), rank.parts.reports, WAIT)
        while not wave.stopped:
            message = rounds.receive(WAIT)
            if message is None:
                raise TimeoutError(f"rank {number} got nothing from rank 0 for {WAIT:.0f} s")
            effects = wave.turn(message, time.monotonic())
            if effects.vote is not None:
                rounds.send(effects.vote)
            rank.admitted.extend(effects.admitted)
    rank.cache.check()
    rounds.close()
    context.term()

"""The WAVE threads over real sockets: commands in, rounds between the ranks, admitted requests out, and an end."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import zmq
from wavepp_worker.errors import EngineDead
from wavepp_worker.liveness.watchdog import Watched
from wavepp_worker.runtime.admission.queue import AdmissionQueue
from wavepp_worker.runtime.admission.round_planner import RoundPlanner
from wavepp_worker.runtime.admission.rounds_plane import FollowerRounds, LeaderRounds
from wavepp_worker.runtime.protocol.commands import Command, Dump, Explain, Stop
from wavepp_worker.runtime.protocol.events import AdmissionExplained, Admitted, Heartbeat
from wavepp_worker.runtime.protocol.inbox import Inbox
from wavepp_worker.runtime.protocol.lane_events import (
    LaneAborted,
    LaneAdmitted,
    LaneProgress,
    RequestsWaiting,
)
from wavepp_worker.runtime.protocol.message import encode
from wavepp_worker.runtime.protocol.rank_state import RankState
from wavepp_worker.runtime.protocol.requests import Arrival, PrefillRequest
from wavepp_worker.runtime.protocol.rounds import Claim, Plan, Tally, Vote
from wavepp_worker.runtime.protocol.whereabouts import Queued
from wavepp_worker.runtime.rank.wave_thread import FollowerWaveThread, LeaderWaveThread
from wavepp_worker.runtime.rank.wave_turn import FollowerWave, LeaderWave
from wavepp_worker.runtime.trace.timeline import OFF

from tests.support.rank_books import RankBooks, submit
from tests.support.waiting import wait_until

ADDRESS = "inproc://rounds"
WAIT = 30.0
"""Seconds that a rank waits for another, where the test is not about that."""
SOON = 0.05
BEAT = 0.001


class Bench:
    """Rank 0 and rank 1 of a worker that admits one request at a time; the test plays their LOOP threads."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.context = context
        self.leader, self.follower = RankBooks(rank=0), RankBooks(rank=1)
        self.to_loop: Inbox[RequestsWaiting | LaneAdmitted | LaneAborted] = Inbox(context, "loop")
        self.from_loop: Inbox[LaneProgress] = Inbox(context, "wave")
        self.admitted: Inbox[str] = Inbox(context, "follower")
        self.commands = context.socket(zmq.PULL)
        self.commands.bind("inproc://commands")
        self.engine = context.socket(zmq.PUSH)
        self.engine.connect("inproc://commands")
        self.opened = [self.to_loop, self.from_loop, self.admitted, self.commands, self.engine]

    def leader_thread(self, wait: float = WAIT, beat: float = 60.0) -> LeaderWaveThread:
        rounds = LeaderRounds(self.context, [ADDRESS], wait)
        self.opened.append(rounds)
        parts, planner = self.leader.parts, RoundPlanner(AdmissionQueue(1), leases=True)
        wave = LeaderWave(planner, parts.actions, parts.requests, parts.reports, parts.cache, 2, beat)
        return LeaderWaveThread(
            wave,
            rounds,
            self.commands,
            self.from_loop,
            self.to_loop,
            self.leader.events,
            OFF,
            Watched("WAVE"),
            WAIT,
        )

    def follower_thread(self, wait: float = WAIT, beat: float = 60.0) -> FollowerWaveThread:
        rounds = FollowerRounds(self.context, ADDRESS)
        self.opened.append(rounds)
        wave = FollowerWave(self.follower.parts.actions, self.follower.parts.reports, wait, beat)
        return FollowerWaveThread(wave, rounds, self.admitted, self.follower.events, Watched("WAVE"), WAIT)

    def rank_0(self) -> LeaderRounds:
        """Rank 0's end of the rounds plane, for a test that plays rank 0."""
        rounds = LeaderRounds(self.context, [ADDRESS], WAIT)
        self.opened.append(rounds)
        return rounds

    def command(self, command: Command) -> None:
        self.engine.send(encode(command))

    def submit(self, name: str) -> None:
        self.command(submit(PrefillRequest.of(name, list(range(10)))))


@pytest.fixture
def bench() -> Iterator[Bench]:
    with zmq.Context() as context:
        made = Bench(context)
        yield made
        for each in made.opened:
            each.close()


def started(thread: LeaderWaveThread | FollowerWaveThread) -> tuple[threading.Thread, threading.Event]:
    stopping = threading.Event()
    running = threading.Thread(target=thread.run, args=(stopping,), daemon=True)
    running.start()
    return running, stopping


def test_a_request_is_admitted_on_both_ranks_and_all_leave_when_told(bench: Bench) -> None:
    ranks = [started(bench.leader_thread()), started(bench.follower_thread())]
    bench.submit("a")
    wait_until(lambda: bench.leader.events.of(Admitted))
    assert bench.to_loop.socket.poll(10_000), "a lane is something to wake up for"
    wait_until(lambda: bench.follower.requests.admitted("a"))
    assert bench.admitted.socket.poll(10_000)
    assert bench.to_loop.take() == [RequestsWaiting(1, 10), RequestsWaiting(0), LaneAdmitted("a", 0, 10)]
    assert bench.admitted.take() == ["a"]
    assert not any(stopping.is_set() for _, stopping in ranks)
    bench.command(Stop())
    for running, stopping in ranks:
        wait_until(stopping.is_set)
        running.join(10)
        assert not running.is_alive()


def test_who_only_waits_does_not_wake_the_loop(bench: Bench) -> None:
    ranks = [started(bench.leader_thread()), started(bench.follower_thread())]
    bench.submit("runs")
    wait_until(lambda: bench.leader.events.of(Admitted))
    assert bench.to_loop.socket.poll(10_000)
    bench.to_loop.take()
    before = bench.leader.parts.reports.rounds
    bench.submit("waits")
    wait_until(lambda: bench.leader.parts.reports.rounds > before)
    bench.command(Stop())
    for running, _ in ranks:
        running.join(10)
    assert not bench.to_loop.socket.poll(0)
    assert bench.to_loop.take() == [RequestsWaiting(1, 10)]


def test_a_follower_heartbeats_while_messages_come_without_a_pause(bench: Bench) -> None:
    """A receive that never has to wait is no reason to be silent: whoever is silent is taken for dead."""
    rank_0, thread, count = bench.rank_0(), bench.follower_thread(beat=BEAT), 1000
    for round_id in range(count):
        # Only rounds about requests are counted.
        arrivals = (Arrival.of(PrefillRequest.of(f"r{round_id}", [1] * 3), b""),)
        rank_0.broadcast(Plan(round_id=round_id, arrivals=arrivals, stop=round_id == count - 1))
        rank_0.broadcast(Tally(round_id=round_id, votes=()))
    thread.run(threading.Event())
    beats = [beat.rounds for beat in bench.follower.events.of(Heartbeat)]
    assert len([rounds for rounds in beats if 0 < rounds < count - 1]) >= 3


def test_both_ranks_heartbeat_while_nothing_happens(bench: Bench) -> None:
    ranks = [started(bench.leader_thread(beat=0.01)), started(bench.follower_thread(beat=0.01))]
    for books in (bench.leader, bench.follower):
        wait_until(lambda books=books: len(books.events.of(Heartbeat)) >= 20)
    bench.command(Stop())
    for running, _ in ranks:
        running.join(10)
        assert not running.is_alive()


def test_a_rank_that_does_not_vote_is_an_error_of_rank_0(bench: Bench) -> None:
    """Promise 18; the process reports it and leaves."""
    thread = bench.leader_thread(wait=SOON)
    bench.follower_thread()
    bench.submit("a")
    stopping = threading.Event()
    with pytest.raises(EngineDead, match="rank 1's vote on round 0"):
        thread.run(stopping)
    assert not stopping.is_set()


def test_a_rank_0_that_falls_silent_in_a_round_is_an_error_of_the_others(bench: Bench) -> None:
    rank_0, thread = bench.rank_0(), bench.follower_thread(wait=SOON)
    rank_0.broadcast(Plan(round_id=0))
    with pytest.raises(EngineDead, match="the tally of round 0"):
        thread.run(threading.Event())


def test_questions_are_answered_while_a_vote_is_missing_and_other_commands_wait_in_their_order(
    bench: Bench,
) -> None:
    rounds = FollowerRounds(bench.context, ADDRESS)
    bench.opened.append(rounds)
    running, _ = started(bench.leader_thread())
    bench.submit("a")
    assert isinstance(rounds.receive(WAIT), Plan)
    for name in ("b", "c"):
        bench.submit(name)
    bench.command(Explain(question_id=5, request_ids=("a", "b")))
    wait_until(lambda: bench.leader.events.of(AdmissionExplained))
    [answer] = bench.leader.events.of(AdmissionExplained)
    assert (answer.question_id, answer.round_id, answer.missing) == (5, 0, (1,))
    assert [(each.request_id, type(each)) for each in answer.requests] == [("a", Queued)]
    assert bench.to_loop.socket.poll(10_000)
    assert Explain(question_id=5, request_ids=("a", "b")) in bench.to_loop.take(), "LOOP answers for itself"
    bench.command(Dump(dump_id=6))
    wait_until(lambda: bench.leader.events.of(RankState))
    assert rounds.receive(WAIT) == Dump(dump_id=6), "the others are asked as well"
    rounds.send(Vote(round_id=0, rank=1, endpoints=(0,)))
    assert isinstance(rounds.receive(WAIT), Tally)
    plan = rounds.receive(WAIT)
    assert isinstance(plan, Plan)
    assert [each.request_id for each in plan.arrivals] == ["b", "c"]
    rounds.send(
        Vote(
            round_id=1,
            rank=1,
            endpoints=(0,) * len(plan.hint),
            claims=tuple(Claim(each.endpoint, committed=True) for each in plan.prepare),
        )
    )
    bench.command(Stop())
    for round_id in range(2, 10):
        assert isinstance(rounds.receive(WAIT), Tally)
        plan = rounds.receive(WAIT)
        assert isinstance(plan, Plan)
        claims = tuple(Claim(each.endpoint, committed=True) for each in plan.prepare)
        rounds.send(Vote(round_id=round_id, rank=1, endpoints=(0,) * len(plan.hint), claims=claims))
        if plan.stop:
            break
    running.join(10)
    assert not running.is_alive()

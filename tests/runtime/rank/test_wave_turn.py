"""The WAVE threads' turns alone: what a round is about, what must wait for it, and what must not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pytest
from wavepp_worker.block_keys import BlockKeys
from wavepp_worker.errors import EngineDead, PositionMismatch
from wavepp_worker.runtime.admission.queue import AdmissionQueue
from wavepp_worker.runtime.admission.round_planner import RoundPlanner
from wavepp_worker.runtime.protocol.commands import Abort, Audit, Clear, Command, Dump, Stop, Submit
from wavepp_worker.runtime.protocol.events import (
    Admitted,
    AuditReport,
    CacheChanges,
    Cleared,
    Event,
    Heartbeat,
    Released,
)
from wavepp_worker.runtime.protocol.lane_events import (
    LaneAborted,
    LaneAdmitted,
    LaneEnded,
    LaneMaterialised,
    LaneProgress,
    RequestsWaiting,
)
from wavepp_worker.runtime.protocol.rank_state import RankState
from wavepp_worker.runtime.protocol.requests import PrefillRequest
from wavepp_worker.runtime.protocol.rounds import Admit, Claim, Plan, Tally, Vote
from wavepp_worker.runtime.rank.wave_turn import FollowerWave, LeaderWave, LeaderWaveEffects

from tests.support.rank_books import RankBooks, arrival_of
from tests.support.rank_books import submit as submit_request

STEP = 0.0625
"""Seconds between two rounds under load, far below a heartbeat's period; a power of two adds up exactly."""
BEAT = 0.5


def submit(name: str, tokens: int = 10, *, probe: bool = False) -> Submit:
    request = PrefillRequest.of(name, list(range(tokens)))
    return submit_request(msgspec.structs.replace(request, probe=probe))


class Leader:
    """Rank 0 of several; the test plays the LOOP thread and the other ranks.

    Attributes:
        to_loop: told to the LOOP thread, in order.
        events: told to the engine, in order.
        plans: of all rounds so far.
    """

    def __init__(self, ranks: int = 1, heartbeat_seconds: float = float("inf"), limit: int = 8) -> None:
        self.ranks = ranks
        self.books = RankBooks()
        parts = self.books.parts
        self.wave = LeaderWave(
            RoundPlanner(AdmissionQueue(limit), leases=True),
            parts.actions,
            parts.requests,
            parts.reports,
            parts.cache,
            ranks,
            heartbeat_seconds,
        )
        self.to_loop: list[Any] = []
        self.events: list[Event] = []
        self.plans: list[Plan] = []

    def turn(self, *messages: Command | LaneProgress, now: float = 0.0) -> Plan | None:
        effects = self.wave.turn(messages, now)
        self._note(effects)
        if effects.plan is not None:
            self.plans.append(effects.plan)
        return effects.plan

    def vote(self) -> Tally:
        """Every rank votes; the others can reuse nothing, and have room."""
        tally = self.wave.vote()
        for rank in range(1, self.ranks):
            assert tally is None
            plan = self.plans[-1]
            claims = tuple(Claim(admit.endpoint, committed=True) for admit in plan.prepare)
            tally = self.wave.cast(
                Vote(round_id=plan.round_id, rank=rank, endpoints=(0,) * len(plan.hint), claims=claims)
            )
        assert tally is not None
        return tally

    def close(self, now: float = 0.0) -> None:
        self._note(self.wave.close(now))

    def rounds(self, *messages: Command | LaneProgress, now: float = 0.0) -> list[Plan]:
        """Turns and rounds until there is nothing to agree on."""
        before = len(self.plans)
        while self.turn(*messages, now=now) is not None:
            self.vote()
            self.close(now)
            self.wave.check()
            messages = ()
        return self.plans[before:]

    def told(self) -> list[Any]:
        """What the LOOP thread was told since the last call."""
        told, self.to_loop = self.to_loop, []
        return told

    def _note(self, effects: LeaderWaveEffects) -> None:
        self.to_loop += effects.to_loop
        self.events += effects.events


def heartbeats(events: Iterable[Event]) -> list[Heartbeat]:
    return [event for event in events if isinstance(event, Heartbeat)]


def test_a_request_is_announced_looked_up_prepared_and_given_a_lane() -> None:
    """In two rounds, whatever the number of ranks."""
    leader = Leader(ranks=3)
    first, second = leader.rounds(submit("a"), now=1.0)
    assert (first.round_id, [each.request_id for each in first.arrivals], first.hint) == (0, ["a"], ("a",))
    assert (second.round_id, second.arrivals, second.prepare) == (1, (), (Admit("a", 0),))
    assert leader.told() == [RequestsWaiting(1, 10), RequestsWaiting(0), LaneAdmitted("a", 0, 10)]
    assert leader.events == [Admitted(request_id="a", endpoint=0, queued=0.0, admission=0.0, at=1.0)]


def test_a_lane_begins_where_all_ranks_can_reuse() -> None:
    leader = Leader()
    before = leader.books.admit("before", range(10))
    leader.books.lifecycle.materialise("before")
    leader.books.execute(before, 10)
    leader.rounds(submit("a"))
    assert leader.told()[-1] == LaneAdmitted("a", 8, 10)


def test_commands_wait_while_a_round_is_open() -> None:
    leader = Leader(ranks=2)
    plan = leader.turn(submit("a"))
    assert plan is not None
    with pytest.raises(PositionMismatch, match="round 0 is open; messages wait until it is closed"):
        leader.turn(submit("b"))
    leader.vote()
    with pytest.raises(PositionMismatch, match="round 0 is open"):
        leader.turn()
    leader.close()
    plans = leader.rounds(submit("b"))
    assert [each.request_id for plan in plans for each in plan.arrivals] == ["b"], "refused is not half taken"


def test_a_round_is_closed_only_when_every_rank_has_voted() -> None:
    leader = Leader(ranks=2)
    with pytest.raises(PositionMismatch, match="no round is open"):
        leader.wave.close(0.0)
    leader.turn(submit("a"))
    with pytest.raises(PositionMismatch, match="round 0 is to be closed before every rank has voted"):
        leader.wave.close(0.0)
    assert leader.wave.vote() is None
    with pytest.raises(PositionMismatch, match="round 0 is to be closed before every rank has voted"):
        leader.wave.close(0.0)
    assert leader.wave.cast(Vote(round_id=0, rank=1, endpoints=(0,))) is not None
    leader.close()
    with pytest.raises(PositionMismatch, match="no round is open"):
        leader.wave.cast(Vote(round_id=0, rank=1, endpoints=(0,)))
    leader.turn()
    with pytest.raises(PositionMismatch, match="round 1 is to be closed before every rank has voted"):
        leader.wave.close(0.0)


def test_an_aborted_request_without_a_lane_is_let_go_of_in_a_round() -> None:
    """S30: the LOOP thread never hears of it, whether all ranks know it already or not."""
    leader = Leader(limit=1)
    leader.rounds(submit("runs"), submit("waits"))
    leader.told()
    (plan,) = leader.rounds(Abort(request_id="waits"))
    assert plan.release == ("waits",)
    assert leader.told() == [RequestsWaiting(0)]
    assert leader.events[-1] == Released(request_id="waits")
    assert leader.books.requests.ids() == ("runs",)
    (plan,) = leader.rounds(submit("brief"), Abort(request_id="brief"))
    assert (plan.arrivals, plan.release) == ((), ("brief",))
    assert leader.told() == []
    assert leader.events[-1] == Released(request_id="brief")


def test_an_aborted_lane_has_to_end_before_the_ranks_let_go() -> None:
    """S30: a wave in flight may carry it."""
    leader = Leader()
    leader.rounds(submit("a"))
    leader.rounds(LaneMaterialised("a"))
    leader.told()
    assert leader.rounds(Abort(request_id="a")) == []
    assert leader.told() == [LaneAborted("a")]
    assert leader.books.requests.ids() == ("a",)
    (plan,) = leader.rounds(LaneEnded("a", aborted=True))
    assert plan.release == ("a",)
    assert leader.events[-1] == Released(request_id="a")
    leader.books.at_rest()


def test_a_lane_that_ran_to_its_end_is_not_let_go_of() -> None:
    leader = Leader()
    leader.rounds(submit("a"))
    assert leader.rounds(LaneMaterialised("a"), LaneEnded("a", aborted=False)) == []
    assert not [event for event in leader.events if isinstance(event, Released)]


def test_the_loop_hears_how_many_wait_only_when_that_changes() -> None:
    leader = Leader(limit=1)
    leader.rounds(submit("a"), submit("b"))
    leader.rounds(submit("c"))
    leader.rounds(now=1.0)
    leader.rounds(LaneMaterialised("a"), now=2.0)
    waiting = [each.requests for each in leader.told() if isinstance(each, RequestsWaiting)]
    assert waiting == [2, 1, 2, 1]


def test_an_audit_asks_every_rank_also_under_load() -> None:
    leader = Leader()
    plans = leader.rounds(submit("a"), Audit(audit_id=5), Audit(audit_id=6))
    assert plans[0].tasks == (Audit(audit_id=5), Audit(audit_id=6))
    assert [report.audit_id for report in leader.books.events.of(AuditReport)] == [5, 6]


def test_all_ranks_clear_their_caches_in_one_round_and_say_so_once_the_router_could_know() -> None:
    leader = Leader()
    leader.books.run("before", [1] * 10)
    held = leader.books.admit("held", [2] * 10)
    leader.books.lifecycle.materialise("held")
    leader.books.execute(held, 8)
    leader.books.events.told.clear()
    (plan,) = leader.rounds(Clear(clear_id=3))
    assert plan.tasks == (Clear(clear_id=3),)
    changes, cleared = leader.books.events.told
    assert isinstance(changes, CacheChanges)
    assert len(BlockKeys(changes.removed)) == 2
    assert cleared == Cleared(clear_id=3, rank=0, forgotten=(2, 0, 0), held=2)
    assert leader.books.tiers.kept == []
    leader.books.cache.check()


def test_a_round_lets_go_of_requests_before_it_clears_what_they_held() -> None:
    leader = Leader()
    leader.rounds(submit("a"))
    leader.books.lifecycle.materialise("a")
    leader.rounds(LaneMaterialised("a"))
    leader.books.execute(leader.books.requests.known("a"), 8)
    leader.rounds(Abort(request_id="a"))
    (plan,) = leader.rounds(LaneEnded("a", aborted=True), Clear(clear_id=0))
    assert (plan.release, plan.tasks) == (("a",), (Clear(clear_id=0),))
    (cleared,) = leader.books.events.of(Cleared)
    assert (cleared.forgotten, cleared.held) == ((2, 0, 0), 0)


def test_rank_0_leaves_when_the_round_that_says_so_is_over() -> None:
    leader = Leader(ranks=2)
    plan = leader.turn(Stop())
    assert plan is not None
    assert plan.stop
    leader.vote()
    assert not leader.wave.stopped
    leader.close()
    assert leader.wave.stopped


def test_rank_0_heartbeats_by_the_clock_also_in_rounds_without_a_pause() -> None:
    """Whoever beats only when idle looks dead under load."""
    leader = Leader(heartbeat_seconds=BEAT)
    assert leader.wave.due(0.0) == 0.0
    count = round(8 * BEAT / STEP)
    for index in range(count):
        plan = leader.turn(submit(f"r{index}"), now=index * STEP)
        assert plan is not None, "every turn begins a round"
        leader.vote()
        leader.close(index * STEP)
    assert len(heartbeats(leader.events)) == 8
    assert [beat.rounds for beat in heartbeats(leader.events)] == list(range(0, count, round(BEAT / STEP)))


def test_rounds_about_a_canary_alone_or_an_audit_are_not_counted() -> None:
    leader = Leader()
    leader.rounds(submit("canary", probe=True), Audit(audit_id=1))
    leader.rounds(LaneMaterialised("canary"), LaneEnded("canary", aborted=True))
    assert (len(leader.plans), leader.books.parts.reports.rounds) == (3, 0)
    counted = len(leader.rounds(submit("next", probe=True), submit("a")))
    assert leader.books.parts.reports.rounds == counted
    assert len(leader.rounds(Abort(request_id="a"), LaneEnded("a", aborted=True))) == 1
    assert leader.books.parts.reports.rounds == counted + 1


def test_rank_0_wakes_for_its_heartbeat_while_nothing_happens() -> None:
    leader = Leader(heartbeat_seconds=BEAT)
    leader.turn(now=1.0)
    assert leader.wave.due(1.0) == 1.0 + BEAT
    leader.turn(now=1.25)
    assert len(heartbeats(leader.events)) == 1
    leader.turn(now=1.5)
    assert len(heartbeats(leader.events)) == 2


def test_rank_0_wakes_at_once_for_what_the_last_round_left_to_do() -> None:
    leader = Leader()
    assert leader.wave.due(3.0) == float("inf"), "only a message brings work"
    leader.turn(submit("a"), now=3.0)
    leader.vote()
    leader.close(3.0)
    assert leader.wave.due(3.0) == 3.0, "looked up, and now to be prepared"


def test_rank_0_heartbeats_tell_who_waits_and_who_runs() -> None:
    leader = Leader(heartbeat_seconds=BEAT, limit=1)
    leader.rounds(submit("a"), submit("b"), submit("c"))
    leader.turn(now=BEAT)
    (_, beat) = heartbeats(leader.events)
    assert (beat.rank, beat.waiting, beat.running) == (0, 2, 1)


def follower(timeout: float = 5.0, heartbeat_seconds: float = float("inf")) -> tuple[FollowerWave, RankBooks]:
    books = RankBooks(rank=1)
    return FollowerWave(books.parts.actions, books.parts.reports, timeout, heartbeat_seconds), books


def tally_of(*votes: Vote | None) -> Tally:
    cast = tuple(vote for vote in votes if vote is not None)
    return Tally(round_id=cast[0].round_id, votes=cast)


def run_rounds(wave: FollowerWave, plans: Sequence[Plan]) -> list[tuple[str, ...]]:
    admitted = []
    for plan in plans:
        admitted.append(wave.turn(tally_of(wave.turn(plan, 0.0).vote), 0.0).admitted)
    return admitted


def test_a_follower_votes_on_the_plan_and_applies_the_tally() -> None:
    wave, books = follower()
    request = PrefillRequest.of("a", list(range(10)))
    effects = wave.turn(Plan(round_id=0, arrivals=(arrival_of(request),), hint=("a",)), 0.0)
    assert effects.vote == Vote(round_id=0, rank=1, endpoints=(0,))
    assert effects.admitted == ()
    assert wave.turn(tally_of(effects.vote), 0.0).vote is None
    effects = wave.turn(Plan(round_id=1, prepare=(Admit("a", 0),)), 0.0)
    assert effects.vote == Vote(round_id=1, rank=1, claims=(Claim(0, committed=True),))
    assert not books.requests.admitted("a"), "some other rank may have no room"
    assert wave.turn(tally_of(effects.vote), 0.0).admitted == ("a",)
    assert books.requests.admitted("a")


def test_a_follower_does_what_all_votes_say_not_what_its_own_says() -> None:
    """Promise 8."""
    wave, books = follower()
    request = PrefillRequest.of("a", list(range(10)))
    run_rounds(wave, [Plan(round_id=0, arrivals=(arrival_of(request),), hint=("a",))])
    own = wave.turn(Plan(round_id=1, prepare=(Admit("a", 0),)), 0.0).vote
    full = Vote(round_id=1, rank=0, claims=(Claim(-1, committed=False),))
    assert wave.turn(tally_of(full, own), 0.0).admitted == ()
    assert books.cache.holds("a") == "nothing"


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        (Plan(round_id=2), "expected the plan of round 1, got Plan"),
        (Plan(round_id=0), "expected the plan of round 1, got Plan"),
        (Tally(round_id=1, votes=()), "expected the plan of round 1, got Tally"),
        (Vote(round_id=1, rank=0), "expected the plan of round 1, got Vote"),
    ],
)
def test_a_follower_refuses_what_is_not_the_next_plan(message: Plan | Tally | Vote, complaint: str) -> None:
    wave, _ = follower()
    run_rounds(wave, [Plan(round_id=0)])
    with pytest.raises(PositionMismatch, match=complaint):
        wave.turn(message, 0.0)


@pytest.mark.parametrize(
    "message",
    [
        Tally(round_id=2, votes=()),
        Tally(round_id=0, votes=()),
        Plan(round_id=1),
        Plan(round_id=2),
        Vote(round_id=1, rank=0),
    ],
)
def test_a_follower_refuses_what_is_not_the_open_rounds_tally(message: Plan | Tally | Vote) -> None:
    wave, books = follower()
    arrivals = [arrival_of(PrefillRequest.of(name, list(range(10)))) for name in "ab"]
    run_rounds(wave, [Plan(round_id=0, arrivals=(arrivals[0],))])
    wave.turn(Plan(round_id=1, arrivals=(arrivals[1],)), 0.0)
    with pytest.raises(
        PositionMismatch, match=f"expected the tally of round 1, got {type(message).__name__}"
    ):
        wave.turn(message, 0.0)
    assert books.parts.reports.rounds == 1, "nothing of it is applied"


def test_a_tally_has_to_come_in_time_and_a_plan_has_not() -> None:
    """Promise 18: no wait for another rank's answer is without an end."""
    wave, _ = follower(timeout=5.0)
    assert wave.due() == float("inf")
    wave.turn(None, 1e6)
    vote = wave.turn(Plan(round_id=0), 1e6 - 30.0).vote
    assert wave.due() == 0.0, "the limit counts from the first look after the vote, however long that took"
    wave.turn(None, 1e6)
    assert wave.due() == 1e6 + 5.0
    wave.turn(None, 1e6 + 4.9)
    with pytest.raises(EngineDead, match="the tally of round 0 did not arrive within 5 s"):
        wave.turn(None, 1e6 + 5.0)
    wave.turn(tally_of(vote), 1e6 + 5.0)
    assert wave.due() == float("inf")


def test_a_follower_says_what_it_holds_at_any_time_and_goes_on_where_it_was() -> None:
    wave, books = follower()
    request = PrefillRequest.of("a", list(range(10)))
    vote = wave.turn(Plan(round_id=0, arrivals=(arrival_of(request),), hint=("a",)), 0.0).vote
    assert wave.turn(Dump(dump_id=3), 0.0).vote is None
    [state] = books.events.of(RankState)
    assert (state.dump_id, state.rank, [each.request_id for each in state.requests]) == (3, 1, ["a"])
    wave.turn(tally_of(vote), 0.0)
    wave.turn(Dump(dump_id=4), 0.0)
    assert [each.dump_id for each in books.events.of(RankState)] == [3, 4]


def test_a_follower_leaves_when_the_round_that_says_so_is_over() -> None:
    wave, _ = follower()
    vote = wave.turn(Plan(round_id=0, stop=True), 0.0).vote
    assert not wave.stopped, "rank 0 waits for every vote"
    wave.turn(tally_of(vote), 0.0)
    assert wave.stopped


def test_a_follower_heartbeats_by_the_clock_also_in_rounds_without_a_pause() -> None:
    """It never sees a turn without a message; the beats go with plans and with tallies."""
    wave, _ = follower(heartbeat_seconds=BEAT)
    events: list[Event] = []
    now, vote = 0.0, None
    for index in range(round(8 * BEAT / STEP)):
        round_id, answers = divmod(index, 2)
        effects = wave.turn(tally_of(vote) if answers else Plan(round_id=round_id), now)
        vote = effects.vote
        events += effects.events
        now += STEP
    assert len(heartbeats(events)) == 8
    vote = vote or wave.turn(Plan(round_id=round_id + 1), now).vote
    assert len(wave.turn(tally_of(vote), now + BEAT).events) == 1, "a tally is no reason to be late"


def test_a_follower_wakes_for_its_heartbeat_while_nothing_happens() -> None:
    wave, _ = follower(timeout=5.0, heartbeat_seconds=BEAT)
    assert wave.due() == 0.0
    (beat,) = heartbeats(wave.turn(None, 2.0).events)
    assert (beat.rank, beat.waiting, beat.running) == (1, 0, 0)
    assert wave.due() == 2.0 + BEAT
    assert wave.turn(None, 2.25).events == ()
    wave.turn(Plan(round_id=0), 2.25)
    assert wave.turn(None, 2.25).events == ()
    assert wave.due() == 2.0 + BEAT, "a wait for the tally does not put it off"
    assert len(wave.turn(None, 2.5).events) == 1

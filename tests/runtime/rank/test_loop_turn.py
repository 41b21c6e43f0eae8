"""The LOOP threads' turns alone: how far rank 0 runs ahead, when a request is over, and what a follower waits for."""

from __future__ import annotations

from typing import Any

import pytest
from wavepp_worker.errors import PositionMismatch, StepTimeout
from wavepp_worker.runtime.planning.greedy import GreedyPlanner
from wavepp_worker.runtime.planning.lanes import Lanes
from wavepp_worker.runtime.planning.planner import PipelineView
from wavepp_worker.runtime.planning.ring import Ring
from wavepp_worker.runtime.protocol.lane_events import (
    LaneAborted,
    LaneAdmitted,
    LaneEnded,
    LaneMaterialised,
    LaneProgress,
    LaneScheduled,
    RequestsWaiting,
)
from wavepp_worker.runtime.protocol.waves import Span, WaveDone, WaveHeader
from wavepp_worker.runtime.rank.loop_turn import PLANNER_PATIENCE_SECONDS, FollowerLoop, LeaderLoop
from wavepp_worker.runtime.trace.timeline import OFF


class Order:
    """Stands in for ``ExecutionOrder``: notes what is materialised, and knows who is admitted."""

    def __init__(self) -> None:
        self.materialised: list[str] = []
        self.admitted: set[str] = set()
        self.unready: set[str] = set()
        self.waiting: str = "upstream"

    def waits_for(self) -> str:
        return self.waiting

    def ready(self, request_id: str) -> bool:
        return request_id not in self.unready

    def materialise(self, request_id: str) -> bool:
        if request_id in self.materialised:
            return False
        self.materialised.append(request_id)
        return True

    def claim(self, spans: tuple[Span, ...]) -> list[str]:
        return [span.request_id for span in spans if self.materialise(span.request_id)]

    def unadmitted(self, spans: tuple[Span, ...]) -> Span | None:
        return next((span for span in spans if span.request_id not in self.admitted), None)


class Leader:
    """A ``LeaderLoop`` that takes turns until it rests; the test plays the last rank and the device."""

    def __init__(self, ranks: int, max_num_seqs: int = 8) -> None:
        self.order: Any = Order()
        self.lanes = Lanes(Ring(2 * ranks), GreedyPlanner(8), max_num_seqs)
        self.loop = LeaderLoop(self.lanes, self.order, OFF)
        self.launched: list[tuple[Span, ...]] = []
        self.progress: list[LaneProgress] = []
        self.wave_seconds = 0.0

    def turns(self, *messages: RequestsWaiting | LaneAdmitted | LaneAborted) -> None:
        busy, left = True, [0.0] * 0
        while busy:
            effects = self.loop.turn(messages, left, 0.0)
            messages, busy = (), effects.busy
            self.progress += effects.progress
            if effects.wave is not None:
                assert effects.wave.wave_id == len(self.launched)
                self.launched.append(effects.wave.spans)
                if self.wave_seconds:
                    left = [*left, sum(left[-1:]) + self.wave_seconds]
        self.loop.check()

    def complete(self, wave_id: int) -> None:
        self.progress += self.loop.complete([WaveDone(wave_id=wave_id)])

    def ended(self) -> list[LaneEnded]:
        ended = [each for each in self.progress if isinstance(each, LaneEnded)]
        self.progress.clear()
        return ended


def test_successive_chunks_of_one_request_fill_the_ring_and_no_more() -> None:
    """Promise 14: R = 2P waves in flight without waiting for any result, then one more per completion."""
    leader = Leader(ranks=3)
    leader.turns(LaneAdmitted("long", 0, 100))
    assert [spans[0].start for spans in leader.launched] == [0, 8, 16, 24, 32, 40]
    leader.complete(0)
    leader.turns()
    assert len(leader.launched) == 7


def test_a_device_that_runs_behind_the_host_is_kept_one_wave_ahead() -> None:
    """The next wave is planned when one ends on rank 0, although the ring has room for more."""
    leader = Leader(ranks=3)
    leader.wave_seconds = 60.0
    leader.turns(LaneAdmitted("long", 0, 100))
    assert len(leader.launched) == 2
    assert leader.loop.turn((), [0.01, 60.0], 0.0).wave is None
    assert leader.loop.turn((), [60.0], 0.0).wave is not None


def test_when_rank_0_may_launch_without_a_message() -> None:
    next_launch = Leader(ranks=1).loop.next_launch
    assert next_launch([]) is None, "nothing on the device: only a message brings work"
    assert next_launch([2.0, 5.0]) == 2.0, "the device has as many waves as it may have until the first ends"
    assert next_launch([2.0]) == pytest.approx(1.995), "a planner that waits for more is asked again in time"
    assert next_launch([0.004]) is None, "it has been asked within the margin already"


def test_a_planner_that_waits_is_told_how_many_requests_may_still_come() -> None:
    """By messages alone: what the WAVE thread counts is not looked at."""
    views: list[PipelineView] = []

    class Noting(GreedyPlanner):
        def propose(self, view: PipelineView) -> tuple[Span, ...]:
            views.append(view)
            return ()

    loop = LeaderLoop(Lanes(Ring(2), Noting(8), 8), Leader(1).order, OFF)
    loop.turn([RequestsWaiting(3), LaneAdmitted("a", 0, 4)], [0.25], 0.0)
    loop.turn([RequestsWaiting(0)], [0.25], 0.5)
    assert [(view.admitting, view.slack, view.now) for view in views] == [(3, 0.25, 0.0), (0, 0.25, 0.5)]


def test_a_planner_that_holds_what_could_be_launched_is_asked_again_and_told_since_when() -> None:
    """Nothing else would wake the thread: the ring is empty, and nobody may ever be admitted."""
    held: list[float] = []

    class Holding(GreedyPlanner):
        def propose(self, view: PipelineView) -> tuple[Span, ...]:
            held.append(view.held)
            return () if view.held < 0.002 else super().propose(view)

    loop = LeaderLoop(Lanes(Ring(2), Holding(8), 8), Leader(1).order, OFF)
    loop.turn([RequestsWaiting(3)], [], 9.0)
    assert loop.next_launch([]) is None, "there is nothing to hold"
    loop.turn([LaneAdmitted("a", 0, 4)], [], 10.0)
    assert loop.next_launch([]) == 0.001
    loop.turn([LaneAdmitted("b", 0, 4)], [], 10.001)
    assert loop.turn((), [], 10.002).wave is not None
    assert loop.next_launch([]) is None
    assert held == pytest.approx([0.0, 0.0, 0.001, 0.002])
    loop.complete([WaveDone(wave_id=0)])
    loop.turn([LaneAdmitted("c", 0, 4)], [], 11.0)
    assert held[-1] == 0.0, "another one, held anew"
    assert loop.turn((), [], 11.002).wave is not None
    loop.turn([LaneAdmitted("d", 0, 4)], [0.25], 12.0)
    loop.turn((), [0.004], 12.246)
    loop.turn((), [0.003], 12.247)
    assert held[-3:] == pytest.approx([0.0, 0.0, 0.001]), "with a wave in flight, once its device runs dry"
    assert loop.next_launch([0.003]) == 0.001


def test_a_planner_that_has_nothing_for_an_idle_pipeline_is_no_wait_without_an_end() -> None:
    class Broken(GreedyPlanner):
        def propose(self, view: PipelineView) -> tuple[Span, ...]:
            return () if len(view.lanes) == 1 else super().propose(view)

    loop = LeaderLoop(Lanes(Ring(2), Broken(8), 8), Leader(1).order, OFF)
    assert loop.turn([LaneAdmitted("a", 0, 4)], [], 10.0).wave is None
    assert loop.turn((), [], 10.0 + PLANNER_PATIENCE_SECONDS).wave is None
    # If the process stood still for a minute, that is nobody's fault: the planner has a wave now.
    assert loop.turn([LaneAdmitted("b", 0, 8)], [], 70.0).wave is not None
    assert loop.turn((), [], 71.0).wave is None
    assert loop.turn((), [], 75.0).wave is None, "a wave is in flight, and its end will be another turn"
    loop.complete([WaveDone(wave_id=0)])
    with pytest.raises(StepTimeout, match=r"held all 1 admitted requests for 4\.5 s although no wave"):
        loop.turn((), [], 75.5)


def test_an_aborted_request_is_over_only_when_no_wave_carries_it() -> None:
    """S30: with several chunks in flight; nothing more of it is scheduled, others go on."""
    leader = Leader(ranks=1)
    leader.turns(LaneAdmitted("gone", 0, 80), LaneAdmitted("stays", 0, 8))
    assert len(leader.launched) == 2
    leader.turns(LaneAborted("gone"))
    assert leader.ended() == []
    leader.complete(0)
    leader.turns()
    assert leader.ended() == []
    assert leader.launched[2][0].request_id == "stays"
    leader.complete(1)
    assert leader.ended() == [LaneEnded("gone", aborted=True)]
    leader.complete(2)
    assert leader.ended() == [LaneEnded("stays", aborted=False)]


def test_aborting_a_request_the_loop_does_not_know_is_reported_at_once() -> None:
    """S33: finished long ago, or never admitted here."""
    leader = Leader(ranks=2)
    leader.turns(LaneAborted("unknown"))
    assert leader.ended() == [LaneEnded("unknown", aborted=True)]


def test_a_lease_is_materialised_when_its_lane_has_a_place_in_the_waves() -> None:
    """Ahead of its first wave while the ring is full, but not beyond the batch: a lease waits with less."""
    leader = Leader(ranks=1, max_num_seqs=2)
    leader.turns(*(LaneAdmitted(name, 0, 24) for name in ("first", "second", "third")))
    assert len(leader.launched) == 2
    assert leader.order.materialised == ["first", "second"]
    assert [each for each in leader.progress if isinstance(each, LaneMaterialised)] == [
        LaneMaterialised("first"),
        LaneMaterialised("second"),
    ]
    leader.complete(0)
    leader.turns()
    assert leader.order.materialised == ["first", "second", "third"]


def test_a_request_that_is_wholly_in_waves_gives_its_lane_back() -> None:
    leader = Leader(ranks=1)
    leader.turns(LaneAdmitted("short", 0, 4))
    assert leader.progress == [LaneMaterialised("short"), LaneScheduled("short")]


def wave(*names: str, wave_id: int = 0) -> WaveHeader:
    return WaveHeader(wave_id=wave_id, spans=tuple(Span(name, 0, 4, True) for name in names))


def follower() -> tuple[FollowerLoop, Any]:
    order: Any = Order()
    return FollowerLoop(order, OFF, timeout=5.0), order


def test_a_wave_whose_requests_are_admitted_runs_at_once() -> None:
    loop, order = follower()
    order.admitted.add("a")
    effects = loop.turn(wave("a"), ["a"], 0.0)
    assert effects.wave == wave("a")
    assert effects.busy, "who was told as admitted is materialised in one of the next turns"


def test_a_wave_that_came_before_its_admission_waits_and_is_not_passed() -> None:
    loop, order = follower()
    assert loop.turn(wave("a", "b"), ["a"], 0.0).wave is None
    assert loop.holds_wave
    assert order.materialised == ["a"], "meanwhile, others are materialised"
    order.admitted.add("a")
    assert loop.turn(None, [], 1.0).wave is None, "some of its requests are not enough"
    order.admitted.add("b")
    assert loop.turn(None, ["b"], 2.0).wave == wave("a", "b")
    assert not loop.holds_wave


def test_a_wave_waits_for_admission_only_so_long() -> None:
    loop, _ = follower()
    loop.turn(wave("a"), [], 10.0)
    loop.turn(None, [], 14.9)
    with pytest.raises(PositionMismatch, match=r"request a is scheduled at token 0.*after 5 s"):
        loop.turn(None, [], 15.0)


def test_a_second_wave_while_one_waits_is_refused() -> None:
    loop, _ = follower()
    loop.turn(wave("a"), [], 0.0)
    with pytest.raises(PositionMismatch, match="wave 1 came while wave 0 waits"):
        loop.turn(wave("a", wave_id=1), [], 0.1)


def test_who_waits_for_blocks_in_the_making_is_materialised_behind_the_wave_that_makes_them() -> None:
    loop, order = follower()
    order.unready.add("a")
    effects = loop.turn(None, ["a", "b"], 0.0)
    assert (order.materialised, effects.busy) == (["b"], False), "nothing to do at once"
    order.unready.clear()
    loop.turn(None, [], 0.0)
    assert order.materialised == ["b", "a"]


def test_admitted_requests_are_materialised_one_a_turn_in_order() -> None:
    loop, order = follower()
    effects = loop.turn(None, ["a", "b"], 0.0)
    assert (order.materialised, effects.busy) == (["a"], True)
    effects = loop.turn(None, [], 0.0)
    assert (order.materialised, effects.busy) == (["a", "b"], False)


def test_rank_0_says_what_it_waits_for() -> None:
    leader = Leader(ranks=1)

    def waits_for(*messages: RequestsWaiting | LaneAdmitted | LaneAborted) -> str:
        leader.turns(*messages)
        return leader.loop.turn((), [], 0.0).waits_for

    assert waits_for() == "no_requests"
    assert waits_for(RequestsWaiting(1)) == "admission"
    assert waits_for(LaneAdmitted("long", 0, 40)) == "ring", "two waves of eight tokens are in flight"
    for wave_id in range(3):
        leader.complete(wave_id)
        leader.turns()
    assert waits_for(RequestsWaiting(0)) == "no_requests", "all there is is in waves"
    leader.lanes.propose = lambda *_: ()  # type: ignore[method-assign]
    leader.complete(3)
    assert waits_for(LaneAdmitted("held", 0, 8)) == "planner"


def test_another_rank_says_what_it_waits_for() -> None:
    loop, order = follower()
    assert loop.turn(None, [], 0.0).waits_for == "upstream"
    order.waiting = "no_requests"
    assert loop.turn(None, [], 0.0).waits_for == "no_requests"
    assert loop.turn(wave("a"), [], 0.0).waits_for == "admission", (
        "its wave is here before it is admitted here"
    )

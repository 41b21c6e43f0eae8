"""What rank 0 puts into a round."""

from __future__ import annotations

from wavepp_worker.runtime.admission.outcome import RoundOutcome
from wavepp_worker.runtime.admission.queue import AdmissionQueue
from wavepp_worker.runtime.admission.round_planner import MAX_KEY_BYTES_PER_ROUND, RoundPlanner
from wavepp_worker.runtime.protocol.lane_events import LaneEnded
from wavepp_worker.runtime.protocol.requests import Arrival
from wavepp_worker.runtime.protocol.rounds import Admit
from wavepp_worker.runtime.protocol.whereabouts import Preparing, Queued, Running


def arrival(name: str, key_bytes: int) -> Arrival:
    return Arrival(request_id=name, prompt_tokens=16, keys=bytes(key_bytes))


def test_a_burst_of_long_prompts_is_announced_over_several_rounds() -> None:
    planner = RoundPlanner(AdmissionQueue(limit=8), leases=True)
    for name in "abc":
        planner.submit(arrival(name, MAX_KEY_BYTES_PER_ROUND * 2 // 3), 0.0)
    planner.abort("b")
    assert planner.take_aborted() == (), "it has no lane"
    first = planner.next_plan(0.0)
    assert first is not None
    assert ([request.request_id for request in first.arrivals], first.release) == (["a"], ("b",))
    assert first.hint == ("a",), "nothing is looked up that was not announced"
    planner.apply(first, RoundOutcome(candidates=(Admit("a", 0),)), 0.0)
    second = planner.next_plan(0.0)
    assert second is not None
    assert [request.request_id for request in second.arrivals] == ["c"]
    assert second.prepare == (Admit("a", 0),)


def test_who_is_not_announced_yet_counts_as_waiting() -> None:
    """Planners size waves by what is coming."""
    planner = RoundPlanner(AdmissionQueue(limit=8), leases=True)
    planner.submit(arrival("a", 16), 0.0)
    assert planner.waiting_tokens() == 16
    plan = planner.next_plan(0.0)
    assert plan is not None
    planner.submit(arrival("b", 16), 0.0)
    assert planner.waiting_tokens() == 32


def test_in_lockstep_nothing_comes_between_a_look_up_and_the_last_allocation() -> None:
    """The executors are parked meanwhile; a round about something else would let them go on."""
    planner = RoundPlanner(AdmissionQueue(limit=8, lockstep=True), leases=False)
    for name in "ab":
        planner.submit(arrival(name, 16), 0.0)
    announced = planner.next_plan(0.0)
    assert announced is not None
    planner.apply(announced, RoundOutcome(), 0.0)
    outcomes = (
        RoundOutcome(candidates=(Admit("a", 8), Admit("b", 8))),
        RoundOutcome(lower=(Admit("a", 4), Admit("b", 4))),
        RoundOutcome(admitted=(Admit("a", 4), Admit("b", 4))),
    )
    for at, outcome in enumerate(outcomes):
        planner.submit(arrival(f"late-{at}", 16), 0.0)
        plan = planner.next_plan(0.0)
        assert plan is not None
        if at == 0:
            assert len(plan.arrivals) == 1
            planner.apply(plan, RoundOutcome(), 0.0)
            plan = planner.next_plan(0.0)
            assert plan is not None
        assert not plan.arrivals, "news while executors are parked"
        planner.apply(plan, outcome, 0.0)
    late = planner.next_plan(0.0)
    assert late is not None
    assert [request.request_id for request in late.arrivals] == ["late-1", "late-2"]


def test_where_requests_are_is_known_from_their_arrival_to_the_end_of_their_last_wave() -> None:
    planner = RoundPlanner(AdmissionQueue(limit=8), leases=True)
    planner.submit(arrival("a", 16), 1.0)
    planner.submit(arrival("b", 16), 2.0)

    def told(now: float) -> list[Queued | Preparing | Running]:
        return planner.whereabouts(["b", "unknown"], now, 1000.0)

    assert told(5.0) == [Queued(request_id="b", seconds=3.0, because="announcing", ahead=1)]
    announced = planner.next_plan(5.0)
    assert announced is not None
    [waiting] = told(5.0)
    assert isinstance(waiting, Queued)
    assert (waiting.because, waiting.ahead) == ("ahead", 1)
    planner.apply(announced, RoundOutcome(candidates=(Admit("a", 0), Admit("b", 0))), 5.0)
    prepared = planner.next_plan(5.0)
    assert prepared is not None
    planner.apply(prepared, RoundOutcome(admitted=(Admit("a", 0), Admit("b", 0))), 5.0)
    assert told(6.0) == [Running(request_id="b")]
    planner.lane_progressed(LaneEnded("b", aborted=False))
    assert told(6.0) == []

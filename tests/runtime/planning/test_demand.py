"""What the load of the last waves says about the next, on numbers worked by hand."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from wavepp_worker.runtime.planning.demand import STEADY_ANSWERS, WINDOW_WAVES, Demand
from wavepp_worker.runtime.planning.planner import Lane, PipelineView
from wavepp_worker.runtime.protocol.waves import Span


def view(waiting: int, flying: int = 0) -> PipelineView:
    lanes = tuple(Lane(f"w{i}", 0, 100) for i in range(waiting))
    return PipelineView(lanes, tuple((Span(f"f{i}", 0, 50, True),) for i in range(flying)))


def launch(demand: Demand, requests: int, waves: int, supply: float = 0.0) -> None:
    for _ in range(waves):
        demand.see(view(requests))
        demand.launched((), supply)


def test_requests_count_whole_until_their_last_wave_is_done() -> None:
    demand, lane = Demand(), Lane("r", 20, 100)
    demand.see(PipelineView((lane,)))
    demand.launched((), 0.0)
    lane.next = 60
    demand.see(PipelineView((lane,), ((Span("r", 20, 40, False),),)))
    assert (demand.requests, demand.tokens) == (1, 80)
    demand.launched((), 0.0)
    demand.see(PipelineView((Lane("s", 0, 8),), ((Span("r", 60, 40, True),),)))
    assert (demand.requests, demand.tokens) == (2, 88)


def test_the_most_of_the_window_counts() -> None:
    demand = Demand()
    launch(demand, 5, 1)
    launch(demand, 2, WINDOW_WAVES - 1)
    demand.see(view(1))
    assert (demand.requests, demand.tokens) == (5, 500)
    launch(demand, 2, 1)
    demand.see(view(1))
    assert (demand.requests, demand.tokens) == (2, 200)


def test_who_is_crowded_out_has_not_left_and_does_not_come_again() -> None:
    """A reader that waited for its writer is older than the last lane, whose place it takes."""
    demand, lanes = Demand(), [Lane(f"r{i}", 0, 100) for i in range(3)]
    known = {lane.request_id for lane in lanes}
    assert len(demand.see(PipelineView((lanes[0], lanes[2]), behind=(lanes[1],), known=known))) == 3
    assert demand.see(PipelineView((lanes[0], lanes[1]), known=known)) == []
    assert demand.gone == ()
    assert demand.missing == 0
    assert demand.see(PipelineView((lanes[1], lanes[2]), known=known - {"r0"})) == []
    assert demand.gone == ("r0",)
    assert demand.see(PipelineView((lanes[1],), known={"r1"})) == []
    assert demand.gone == ("r2",)


def test_who_comes_in_front_of_a_reader_that_was_known_has_come() -> None:
    """A lane that had no place before, and gets one together with the reader."""
    demand, lanes = Demand(), [Lane(f"r{i}", 0, 100) for i in range(3)]
    known = {lane.request_id for lane in lanes}
    assert demand.see(PipelineView((lanes[0],), behind=(lanes[2],), known=known)) == [lanes[0], lanes[2]]
    newest = Lane("r3", 0, 100)
    known |= {"r3"}
    assert demand.see(PipelineView((lanes[0], lanes[1], lanes[2], newest), known=known)) == [lanes[1], newest]
    assert demand.tokens == 400


def numbered(first: int, last: int) -> PipelineView:
    return PipelineView(tuple(Lane(f"w{i}", 0, 100) for i in range(first, last)))


def answer(demand: Demand, begun: int, present: int, answered: int, again: int) -> int:
    """The oldest ``answered`` of the requests from number ``begun`` end, ``again`` new ones come; the first left."""
    lanes = numbered(begun, begun + present).lanes
    ending = tuple(Span(lane.request_id, 0, 100, True) for lane in lanes[:answered])
    demand.see(PipelineView(lanes))
    demand.launched(ending, 0.0)
    demand.see(PipelineView(lanes[answered:], (ending,)))
    demand.see(PipelineView(lanes[answered:]))
    demand.see(numbered(begun + answered, begun + present + again))
    return begun + answered


def test_a_load_is_steady_while_only_those_who_were_answered_ask_again() -> None:
    demand, begun = Demand(), 0
    for _ in range(20):
        begun = answer(demand, begun, present=4, answered=2, again=2)
        assert demand.steady


def test_one_request_more_after_an_answer_comes_from_somebody_else() -> None:
    demand, begun = Demand(), 0
    begun = answer(demand, begun, present=3, answered=1, again=2)
    assert not demand.steady
    for _ in range(STEADY_ANSWERS - 1):
        begun = answer(demand, begun, present=4, answered=1, again=1)
    assert not demand.steady
    answer(demand, begun, present=4, answered=1, again=1)
    assert demand.steady, "it did not happen again for long enough"


def test_clients_that_begin_one_after_the_other_are_no_open_loop() -> None:
    demand = Demand()
    for clients in range(1, 9):
        demand.see(numbered(0, clients))
    assert demand.steady
    answer(demand, 0, present=8, answered=3, again=3)
    assert demand.steady


def test_clients_that_begin_when_others_have_stopped_are_no_open_loop() -> None:
    demand = Demand()
    begun = answer(demand, 0, present=2, answered=1, again=1)
    begun = answer(demand, begun, present=2, answered=1, again=0)
    begun = answer(demand, begun, present=1, answered=1, again=0)
    demand.see(PipelineView(()))
    demand.see(numbered(begun, begun + 8))
    assert demand.steady


def test_several_that_are_all_answered_before_anybody_else_comes_are_no_closed_loop() -> None:
    demand = Demand()
    begun = answer(demand, 0, present=3, answered=1, again=0)
    begun = answer(demand, begun, present=2, answered=2, again=0)
    demand.see(PipelineView(()))
    assert not demand.steady


def test_one_client_is_a_steady_load_although_it_leaves_the_pipeline_empty() -> None:
    demand, begun = Demand(), 0
    for _ in range(4):
        begun = answer(demand, begun, present=1, answered=1, again=0)
        demand.see(PipelineView(()))
        assert demand.steady


def test_running_empty_again_and_again_is_no_steady_load() -> None:
    demand = Demand()
    begun = answer(demand, 0, present=3, answered=1, again=2)
    assert not demand.steady
    for _ in range(2 * STEADY_ANSWERS):
        for present in (4, 3, 2, 1):
            begun = answer(demand, begun, present=present, answered=1, again=0)
        demand.see(PipelineView(()))
        demand.see(numbered(begun, begun + 4))
        assert not demand.steady


def test_what_came_to_an_idle_pipeline_is_a_burst_until_somebody_comes_after_an_answer() -> None:
    demand = Demand()
    for clients in range(1, 9):
        demand.see(numbered(0, clients))
    assert demand.burst
    begun = answer(demand, 0, present=8, answered=3, again=0)
    assert demand.burst, "nobody asked again"
    begun = answer(demand, begun, present=5, answered=1, again=1)
    assert not demand.burst
    begun = answer(demand, begun, present=5, answered=5, again=0)
    demand.see(PipelineView(()))
    demand.see(numbered(begun, begun + 2))
    assert demand.burst, "those before have all gone"


def test_who_has_waited_behind_another_does_not_come_when_it_may_run() -> None:
    demand, (first, reader, last) = Demand(), numbered(0, 3).lanes
    assert demand.see(PipelineView((first, last), behind=(reader,))) == [first, last, reader]
    assert (demand.requests, demand.tokens) == (3, 300)
    demand.launched((Span("w0", 0, 100, True),), 0.0)
    assert demand.see(PipelineView((last,), behind=(reader,))) == []
    assert demand.see(PipelineView((reader, last))) == []
    assert demand.burst
    assert demand.steady


def test_who_comes_is_told_once_oldest_first() -> None:
    demand = Demand()
    assert [lane.request_id for lane in demand.see(numbered(0, 2))] == ["w0", "w1"]
    assert [lane.request_id for lane in demand.see(numbered(0, 4))] == ["w2", "w3"]
    assert demand.see(numbered(0, 4)) == []


def test_the_largest_supply_of_the_window_counts() -> None:
    demand = Demand()
    launch(demand, 4, WINDOW_WAVES, supply=99.0)
    assert demand.recent
    assert demand.supply(50.0) == 50.0, "they came just now"
    launch(demand, 4, 1, supply=90.0)
    launch(demand, 4, WINDOW_WAVES - 1, supply=40.0)
    assert demand.supply(50.0) == 90.0
    launch(demand, 4, 1, supply=40.0)
    assert demand.supply(50.0) == 50.0


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000))
def test_any_traffic_is_counted_as_by_looking_at_all_of_it(seed: int) -> None:
    rng, demand = random.Random(seed), Demand()
    lanes: list[Lane] = []
    flight: list[tuple[Span, ...]] = []
    whole: dict[str, int] = {}
    opens: dict[str, int] = {}
    waves = [(0, 0)] * WINDOW_WAVES
    for step in range(300):
        for _ in range(rng.choice((0, 0, 1, 3))):
            lane = Lane(f"r{step}.{len(lanes)}", 0, rng.randrange(1, 200))
            lanes.append(lane)
            whole[lane.request_id] = lane.left
            opens[lane.request_id] = step + rng.choice((0, 0, 5))
        if lanes and rng.random() < 0.1:
            lanes.remove(rng.choice(lanes))
        if flight and rng.random() < 0.5:
            flight.pop(0)
        ready = [lane for lane in lanes if opens[lane.request_id] <= step]
        behind = tuple(lane for lane in lanes if lane not in ready)
        demand.see(PipelineView(tuple(ready), tuple(flight), behind=behind))
        present = {lane.request_id for lane in lanes} | {span.request_id for wave in flight for span in wave}
        now = len(present), sum(whole[request_id] for request_id in present)
        recent = [*waves[-WINDOW_WAVES:], now]
        assert demand.requests == max(requests for requests, _ in recent)
        assert demand.tokens == max(tokens for _, tokens in recent)
        if ready and len(flight) < 6 and rng.random() < 0.7:
            carried = ready[: rng.randrange(1, 4)]
            spans = tuple(
                lane.span(rng.choice((lane.left, rng.randrange(1, lane.left + 1)))) for lane in carried
            )
            demand.launched(spans, 0.0)
            waves.append(now)
            flight.append(spans)
            for span, lane in zip(spans, carried, strict=True):
                lane.next += span.length
            lanes = [lane for lane in lanes if lane.left]


def test_who_left_without_having_ended_is_told_of_once() -> None:
    demand = Demand()
    demand.see(numbered(0, 4))
    assert demand.gone == ()
    demand.launched([Span("w0", 0, 100, True)], 0.0)
    demand.see(PipelineView(numbered(2, 4).lanes, ((Span("w0", 0, 100, True),),)))
    assert demand.gone == ("w1",)
    demand.see(numbered(2, 4))
    assert demand.gone == (), "the other one has ended"
    demand.see(PipelineView(()))
    assert sorted(demand.gone) == ["w2", "w3"]

"""When a small wave is held for those who are about to ask again: four stages, eight clients of 100 tokens."""

from __future__ import annotations

from wavepp_worker.runtime.planning.demand import Demand
from wavepp_worker.runtime.planning.gathering import FIRST_PAUSE_WAVES, Gathering
from wavepp_worker.runtime.planning.planner import LONGEST_HOLD_SECONDS, Lane, PipelineView
from wavepp_worker.runtime.planning.wave_cost import WaveCost
from wavepp_worker.runtime.protocol.waves import Span

COST = WaveCost(a=0.02, b=0.001, c=0.0)


class Clients:
    """What has been seen of eight clients, all of whom have once asked at the same time."""

    def __init__(self, stages: int = 4, max_tokens: int = 1000) -> None:
        self.gathering = Gathering(stages, max_tokens)
        self.demand = Demand()
        self.demand.see(PipelineView([Lane(f"first{i}", 0, 100) for i in range(8)]))
        self.demand.launched((), 0.0)

    def holds(self, *waves: int, lanes: int = 1, admitting: int = 0, held: float = 0.0) -> bool:
        """Whether a wave of all ``lanes`` is held, with ``waves`` of so many requests in flight."""
        flight = tuple(
            tuple(Span(f"w{number}.{i}", 0, 100, True) for i in range(requests))
            for number, requests in enumerate(waves)
        )
        waiting = [Lane(f"l{i}", 0, 100) for i in range(lanes)]
        view = PipelineView(waiting, flight, admitting, held=held)
        self.demand._ending.clear()
        self.demand._ending.extend(span.request_id for wave in flight for span in wave)
        self.demand.see(view)
        return self.gathering.holds(view, [lane.span(100) for lane in waiting], self.demand, COST)


def test_a_small_wave_is_held_that_would_be_one_group_more_than_there_are_stages() -> None:
    assert Clients().holds(2, 2, 2, 1)
    assert not Clients().holds(2, 2, 2, 1, lanes=2), "what one of four equal waves takes"


def test_a_small_wave_is_held_while_some_of_its_group_have_not_asked_again() -> None:
    assert Clients().holds(2, 2, 2), "one of eight is missing"
    assert not Clients().holds(3, 2, 2), "all there are"
    assert Clients().holds(3, 2, 2, admitting=1), "somebody comes for certain"
    assert not Clients().holds(2, 2), "two stages have nothing: work is needed, not a better wave"


def test_a_wave_is_held_for_what_one_wave_more_costs_and_no_longer_than_planners_may() -> None:
    assert Clients().holds(2, 2, 2, 1, held=0.0199)
    assert not Clients().holds(2, 2, 2, 1, held=0.02)
    assert LONGEST_HOLD_SECONDS > 0.02


def test_after_a_miss_nobody_is_missed_for_some_waves_and_for_twice_as_many_after_the_next() -> None:
    clients = Clients()
    for pause in (FIRST_PAUSE_WAVES, 2 * FIRST_PAUSE_WAVES):
        assert clients.holds(2, 2, 2, 1)
        assert not clients.holds(2, 2, 2, 1, held=0.02), "the miss"
        for _ in range(pause):
            assert not clients.holds(2, 2, 2, 1)
            assert clients.holds(2, 2, 2, 1, admitting=1), "who is being admitted comes for certain"
            clients.gathering.launched()
    assert clients.holds(2, 2, 2, 1)


def test_who_waits_for_admission_and_did_not_come_is_not_waited_for_again_for_some_waves() -> None:
    """The cache is full, say: somebody is always about to be admitted, and would hold every small wave."""
    clients = Clients()
    for pause in (FIRST_PAUSE_WAVES, 2 * FIRST_PAUSE_WAVES):
        assert clients.holds(2, 2, 2, admitting=1)
        assert not clients.holds(2, 2, 2, admitting=1, held=0.02), "the miss"
        for _ in range(pause):
            assert not clients.holds(2, 2, 2, admitting=1)
            assert not clients.holds(2, 2, 2, 1, admitting=1)
            clients.gathering.launched()


def test_who_has_left_is_not_missed_again() -> None:
    clients = Clients()
    assert not clients.holds(2, 2, 2, held=0.02)
    for _ in range(FIRST_PAUSE_WAVES):
        clients.gathering.launched()
    assert not clients.holds(2, 2, 2), "the one who was missing then"
    assert clients.holds(2, 2, 1), "one more"
    assert not clients.holds(3, 2, 2), "all are back"
    assert clients.holds(2, 2, 2), "so who is missing now has just been answered"


def test_what_all_ask_is_shared_by_full_waves_if_it_is_more_than_the_stages_can_have_at_once() -> None:
    """Eight of 100 on one stage: one wave of 800, or two of 400."""
    assert Clients(stages=1).holds(4, lanes=4)
    assert not Clients(stages=1, max_tokens=500).holds(4, lanes=4)
    assert Clients(stages=1, max_tokens=500).holds(4, lanes=3)

"""How the time of a pipeline is divided among its waves."""

from __future__ import annotations

from collections.abc import Sequence

from wavepp_worker.runtime.planning.greedy import GreedyPlanner
from wavepp_worker.runtime.planning.lanes import Lanes
from wavepp_worker.runtime.planning.ring import Ring
from wavepp_worker.runtime.protocol.events import ForwardPass
from wavepp_worker.runtime.protocol.lane_events import LaneAdmitted
from wavepp_worker.runtime.protocol.waves import Span, WaveDone
from wavepp_worker.runtime.rank.execution_order import ExecutionOrder
from wavepp_worker.runtime.rank.loop_turn import LeaderLoop
from wavepp_worker.runtime.rank.pass_meter import PassMeter
from wavepp_worker.runtime.trace.timeline import OFF


def lanes(*lengths: int) -> Lanes:
    """Requests ``r0``, ``r1``, … of which 16 tokens are there; waves of 8."""
    made = Lanes(Ring(4), GreedyPlanner(8), 8)
    for number, length in enumerate(lengths):
        made.take(LaneAdmitted(f"r{number}", 16, 16 + length))
    return made


def test_waves_that_overlap_have_the_time_since_the_one_before() -> None:
    waiting = lanes(12, 4)
    meter = PassMeter(waiting)
    for now in (1.0, 1.5):
        spans = waiting.propose()
        wave_id, _ = waiting.launch(spans)
        meter.launched(wave_id, spans, now)
    first, second = (
        meter.ended(WaveDone(wave_id=number, ended=ended)) for number, ended in ((0, 3.0), (1, 4.0))
    )
    assert first == ForwardPass(
        requests=1, tokens=8, context_tokens=16, seconds=2.0, waiting_requests=0, waiting_tokens=0
    )
    assert second == ForwardPass(
        requests=2, tokens=8, context_tokens=24 + 16, seconds=1.0, waiting_requests=0, waiting_tokens=0
    )


def test_a_wave_after_a_pause_has_the_time_since_its_launch_and_tells_what_waits() -> None:
    waiting = lanes(8, 8, 8)
    meter = PassMeter(waiting)
    for number, (launched, ended) in enumerate(((1.0, 2.0), (10.0, 10.5))):
        spans = waiting.propose()
        waiting.launch(spans)
        meter.launched(number, spans, launched)
        passed = meter.ended(WaveDone(wave_id=number, ended=ended))
        waiting.complete(number)
    assert passed is not None
    assert (passed.seconds, passed.waiting_requests, passed.waiting_tokens) == (0.5, 1, 8)


def test_of_probes_nothing_is_told() -> None:
    waiting = Lanes(Ring(4), GreedyPlanner(8), 8)
    waiting.take(LaneAdmitted("canary", 0, 1, probe=True))
    meter = PassMeter(waiting)
    meter.launched(0, waiting.propose(), 1.0)
    assert meter.ended(WaveDone(wave_id=0, ended=2.0)) is None


def test_the_leader_tells_of_each_wave_that_ended() -> None:
    told: list[ForwardPass] = []

    class Order(ExecutionOrder):
        def __init__(self) -> None:
            pass

        def claim(self, spans: Sequence[Span]) -> list[str]:
            return [span.request_id for span in spans]

    leader = LeaderLoop(lanes(12), Order(), OFF, told.append)
    for _ in range(2):
        leader.turn((), (), 1.0)
    leader.complete([WaveDone(wave_id=0, ended=1.5), WaveDone(wave_id=1, ended=1.75)])
    assert [(each.tokens, each.seconds) for each in told] == [(8, 0.5), (4, 0.25)]

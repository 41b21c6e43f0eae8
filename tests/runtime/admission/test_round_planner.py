"""What rank 0 puts into a round."""

from __future__ import annotations

from wavepp_worker.runtime.admission.outcome import RoundOutcome
from wavepp_worker.runtime.admission.queue import AdmissionQueue
from wavepp_worker.runtime.admission.round_planner import MAX_PROMPT_BYTES_PER_ROUND, RoundPlanner
from wavepp_worker.runtime.protocol.requests import PrefillRequest
from wavepp_worker.runtime.protocol.rounds import Admit


def test_a_burst_of_long_prompts_is_announced_over_several_rounds() -> None:
    planner = RoundPlanner(AdmissionQueue(limit=8), leases=True)
    for name in "abc":
        planner.submit(
            PrefillRequest(request_id=name, tokens=bytes(MAX_PROMPT_BYTES_PER_ROUND * 2 // 3)), 0.0
        )
    assert planner.abort("b")
    first = planner.next_plan(0.0)
    assert first is not None
    assert ([request.request_id for request in first.arrivals], first.release) == (["a"], ("b",))
    assert first.hint == ("a",), "nothing is looked up that was not announced"
    planner.apply(first, RoundOutcome(candidates=(Admit("a", 0),)), 0.0)
    second = planner.next_plan(0.0)
    assert second is not None
    assert [request.request_id for request in second.arrivals] == ["c"]
    assert second.prepare == (Admit("a", 0),)

"""Which of a prefill's spans are recorded when; tracer and spans only note what they are told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from wavepp_worker.dynamo.prefill_tracing import PrefillTracing
from wavepp_worker.errors import EngineDead
from wavepp_worker.model.sampled_token import SampledToken
from wavepp_worker.runtime.protocol.prefill_trace import PrefillTrace
from wavepp_worker.runtime.protocol.requests import (
    HandedOff,
    PrefillRequest,
    PrefillResult,
    RankHandedOff,
    Timings,
)

REQUEST = PrefillRequest.of("r", [1, 2, 3], handoff=True)
TRACE = PrefillTrace(
    arrived=1.0, discovered=1.0, selected=1.0, admitted=1.0, attempts=1, waves=(), answered=2.0
)
RESULT = PrefillResult(
    request_id="r",
    first=SampledToken(1),
    prompt_tokens=3,
    reused_tokens=0,
    timings=Timings(queued=0.0, admission=0.0, execution=0.0, total=0.0),
    trace=TRACE,
)
ENDED = HandedOff(request_id="r", answered=2.0, ranks=(RankHandedOff(0, "received", 3.0),))


class Noting:
    """Implements ``Tracer`` and ``OpenSpan``; ``sampled`` traces alone are begun."""

    def __init__(self, sampled: bool = True) -> None:
        self.sampled = sampled
        self.noted: list[Any] = []

    def begin(self, name: str, request_id: str, headers: Mapping[str, str] | None) -> Noting | None:
        self.noted.append((name, request_id, headers))
        return self if self.sampled else None

    def add(self, part: Any) -> None:
        self.noted.append((part.name, part.attributes.get("wavepp.bytes")))

    def end(self, attributes: Any, error: str | None = None) -> None:
        self.noted.append(error or "ended")


def tracing(tracer: Noting | None) -> PrefillTracing:
    anything: Any = tracer
    return PrefillTracing(anything)


def test_a_prefill_is_followed_until_its_kv_is_handed_off() -> None:
    tracer = Noting()
    followed = tracing(tracer)
    with followed.begun(REQUEST, {"traceparent": "x"}) as traced:
        assert traced.request.traced
        followed.submitted(traced, 640)
        traced.answered(RESULT)
    followed.handed_off(ENDED)
    followed.handed_off(ENDED)
    assert tracer.noted == [
        ("wavepp.prefill", "r", {"traceparent": "x"}),
        ("wavepp.admission", None),
        "ended",
        ("wavepp.handoff.offered", 640),
    ]


@pytest.mark.parametrize("tracer", [None, Noting(sampled=False)])
def test_a_prefill_that_is_not_traced_asks_nothing_of_the_ranks(tracer: Noting | None) -> None:
    followed = tracing(tracer)
    with followed.begun(REQUEST, None) as traced:
        assert traced.request is REQUEST
        followed.submitted(traced, 640)
        traced.answered(RESULT)
    followed.handed_off(ENDED)
    assert followed._handing_off == {}


def test_a_prefill_that_fails_says_why_and_is_not_followed_any_more() -> None:
    tracer = Noting()
    followed = tracing(tracer)

    def fails() -> None:
        with followed.begun(REQUEST, None) as traced:
            followed.submitted(traced, 640)
            raise EngineDead("rank 1 is gone")

    with pytest.raises(EngineDead):
        fails()
    followed.handed_off(ENDED)
    assert tracer.noted[1:] == ["EngineDead: rank 1 is gone"]


def test_a_request_that_is_refused_leaves_the_one_whose_id_it_took_alone() -> None:
    tracer = Noting()
    followed = tracing(tracer)
    with followed.begun(REQUEST, None) as first:
        followed.submitted(first, 640)
        first.answered(RESULT)
    with pytest.raises(EngineDead), followed.begun(REQUEST, None):
        raise EngineDead("the id is in use")
    followed.handed_off(ENDED)
    assert tracer.noted[-1] == ("wavepp.handoff.offered", 640)

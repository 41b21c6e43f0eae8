"""What a request's spans say, and when they begin and end."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from wavepp_worker.decode.engine_io import Arrived
from wavepp_worker.dynamo.spans import (
    MOST_WAVES,
    Span,
    offered_span,
    prefill_attributes,
    prefill_spans,
    received_span,
)
from wavepp_worker.handoff.decode.received import Moments
from wavepp_worker.model.sampled_token import SampledToken
from wavepp_worker.runtime.protocol.prefill_trace import PrefillTrace, WaveTrace
from wavepp_worker.runtime.protocol.requests import (
    HandedOff,
    PrefillResult,
    RankHandedOff,
    StageTiming,
    Timings,
)

STAGES = (StageTiming(0, 0.5), StageTiming(1, 0.5))
TIMINGS = Timings(queued=1.0, admission=0.5, execution=2.0, total=3.5, stages=STAGES)
WAVES = (
    WaveTrace(7, 16, 32, (11.5, 12.0), (0.5, 0.25), 12.25),
    WaveTrace(9, 48, 12, (12.0, 12.25), (0.25, 0.25), 12.5),
)
TRACE = PrefillTrace(
    arrived=10.0, discovered=10.25, selected=11.0, admitted=11.5, attempts=2, waves=WAVES, answered=12.5
)
RESULT = PrefillResult(
    request_id="r", first=SampledToken(1), prompt_tokens=60, reused_tokens=16, timings=TIMINGS, trace=TRACE
)


def flat(spans: Iterator[Span]) -> Iterator[tuple[str, float, float]]:
    for span in spans:
        yield span.name, span.start, span.end
        yield from flat(iter(span.parts))


def test_a_prefill_is_its_admission_and_its_waves() -> None:
    assert list(flat(prefill_spans(RESULT))) == [
        ("wavepp.admission", 10.0, 11.5),
        ("wavepp.admission.discovery", 10.0, 10.25),
        ("wavepp.admission.wait", 10.25, 11.0),
        ("wavepp.admission.lease_escrow_commit", 11.0, 11.5),
        ("wavepp.wave", 11.5, 12.25),
        ("wavepp.wave", 12.0, 12.5),
    ]
    admission, wave, _ = prefill_spans(RESULT)
    assert admission.attributes == {"wavepp.reused_tokens": 16, "wavepp.attempts": 2}
    assert wave.attributes == {
        "wavepp.wave_id": 7,
        "wavepp.chunk_start": 16,
        "wavepp.chunk_tokens": 32,
        "wavepp.rank_begin_seconds": [0.0, 0.5],
        "wavepp.rank_compute_seconds": [0.5, 0.25],
    }


def test_what_is_said_of_the_whole_prefill() -> None:
    assert prefill_attributes(RESULT) == {
        "wavepp.prompt_tokens": 60,
        "wavepp.reused_tokens": 16,
        "wavepp.ranks": 2,
        "wavepp.waves": 2,
    }


def test_a_prefill_that_was_not_traced_has_no_parts() -> None:
    assert list(prefill_spans(msgspec.structs.replace(RESULT, trace=None))) == []


def test_a_long_prompt_leaves_room_for_the_spans_of_others() -> None:
    waves = tuple(WaveTrace(each, 16 * each, 16, (1.0,), (0.5,), 1.5) for each in range(MOST_WAVES + 5))
    long = msgspec.structs.replace(RESULT, trace=msgspec.structs.replace(TRACE, waves=waves))
    assert len(list(prefill_spans(long))) == 1 + MOST_WAVES
    assert prefill_attributes(long)["wavepp.waves"] == MOST_WAVES + 5


def test_an_offer_ends_with_the_last_rank() -> None:
    ranks = (RankHandedOff(1, "received", 19.0), RankHandedOff(0, "expired", 22.0))
    span = offered_span(HandedOff(request_id="r", answered=20.0, ranks=ranks), 640)
    assert list(flat(iter([span]))) == [
        ("wavepp.handoff.offered", 20.0, 22.0),
        ("wavepp.handoff.rank", 20.0, 20.0),
        ("wavepp.handoff.rank", 20.0, 22.0),
    ]
    assert span.attributes == {"wavepp.outcome": "expired", "wavepp.bytes": 640}
    assert [part.attributes["wavepp.rank"] for part in span.parts] == [1, 0]


def test_kv_that_arrives_before_the_first_token_has_no_tail() -> None:
    moments = Moments(began=1.0, offered=2.0, prefilled=4.0, ended=5.0)
    span = received_span(Arrived(moments=moments, bytes_received=640, ranks=2))
    assert list(flat(iter([span]))) == [
        ("wavepp.handoff.received", 1.0, 5.0),
        ("wavepp.handoff.offer", 1.0, 2.0),
        ("wavepp.handoff.pull", 2.0, 5.0),
        ("wavepp.handoff.tail", 4.0, 5.0),
    ]
    assert span.attributes == {"wavepp.bytes": 640, "wavepp.ranks": 2}

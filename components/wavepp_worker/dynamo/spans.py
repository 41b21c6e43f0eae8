"""What requests' spans look like in a trace: names, times and attributes. Pure; times are monotonic seconds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from wavepp_worker.decode.engine_io import Arrived
from wavepp_worker.runtime.protocol.prefill_trace import PrefillTrace, WaveTrace
from wavepp_worker.runtime.protocol.requests import HandedOff, PrefillResult

Attribute = str | bool | int | float | Sequence[str] | Sequence[int] | Sequence[float]
PREFILL, DECODE = "wavepp.prefill", "wavepp.decode"
"""A request's spans in this worker, below Dynamo's own."""
REQUEST_ID, REPLICA = "wavepp.request_id", "wavepp.replica"
PROMPT_TOKENS, REUSED_TOKENS = "wavepp.prompt_tokens", "wavepp.reused_tokens"
MOST_WAVES = 256
"""Waves of one request that have a span each; a prompt of many more would push other requests' spans out."""


@dataclass(frozen=True)
class Span:
    """Something that took a while, with what was part of it."""

    name: str
    start: float
    end: float
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    parts: tuple[Span, ...] = ()


def prefill_attributes(result: PrefillResult) -> dict[str, Attribute]:
    """What is said of a prefill that was answered."""
    waves = () if result.trace is None else result.trace.waves
    return {
        PROMPT_TOKENS: result.prompt_tokens,
        REUSED_TOKENS: result.reused_tokens,
        "wavepp.ranks": len(result.timings.stages),
        "wavepp.waves": len(waves),
    }


def prefill_spans(result: PrefillResult) -> Iterator[Span]:
    """The parts of a prefill that was traced: its admission, then each wave; nothing of one that was not."""
    if result.trace is None:
        return
    yield _admission(result, result.trace)
    yield from map(_wave, islice(result.trace.waves, MOST_WAVES))


def _admission(result: PrefillResult, trace: PrefillTrace) -> Span:
    """All ranks' agreement: up to where each has the prefix, a wait for place and room, then leases and escrow."""
    return Span(
        "wavepp.admission",
        trace.arrived,
        trace.admitted,
        {REUSED_TOKENS: result.reused_tokens, "wavepp.attempts": trace.attempts},
        (
            Span("wavepp.admission.discovery", trace.arrived, trace.discovered),
            Span("wavepp.admission.wait", trace.discovered, max(trace.discovered, trace.selected)),
            Span("wavepp.admission.lease_escrow_commit", trace.selected, trace.admitted),
        ),
    )


def _wave(wave: WaveTrace) -> Span:
    start = min(wave.begun)
    return Span(
        "wavepp.wave",
        start,
        wave.ended,
        {
            "wavepp.wave_id": wave.wave_id,
            "wavepp.chunk_start": wave.start,
            "wavepp.chunk_tokens": wave.length,
            "wavepp.rank_begin_seconds": [round(begun - start, 6) for begun in wave.begun],
            "wavepp.rank_compute_seconds": [round(seconds, 6) for seconds in wave.compute],
        },
    )


def offered_span(ended: HandedOff, offered_bytes: int) -> Span:
    """The prefill side of a hand-off: from the first token until no rank holds the KV any more."""
    return Span(
        "wavepp.handoff.offered",
        ended.answered,
        ended.answered + ended.seconds,
        {"wavepp.outcome": ended.outcome, "wavepp.bytes": offered_bytes},
        tuple(
            Span(
                "wavepp.handoff.rank",
                ended.answered,
                max(ended.answered, rank.at),
                {"wavepp.rank": rank.rank, "wavepp.outcome": rank.outcome},
            )
            for rank in ended.ranks
        ),
    )


def received_span(arrived: Arrived) -> Span:
    """The decode side: until the prompt is admitted, then until its KV is here; the tail follows the first token."""
    moments = arrived.moments
    prefilled = min(moments.prefilled, moments.ended)
    return Span(
        "wavepp.handoff.received",
        moments.began,
        moments.ended,
        {"wavepp.bytes": arrived.bytes_received, "wavepp.ranks": arrived.ranks},
        (
            Span("wavepp.handoff.offer", moments.began, moments.offered),
            Span("wavepp.handoff.pull", moments.offered, moments.ended),
            Span("wavepp.handoff.tail", prefilled, moments.ended),
        ),
    )

"""Spans as OpenTelemetry has them: whose children they are, when they were, and what it costs to have none."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
from wavepp_worker.dynamo import tracer as tracers
from wavepp_worker.dynamo.spans import Span
from wavepp_worker.dynamo.tracer import Tracer, make_tracer
from wavepp_worker.errors import ConfigError
from wavepp_worker.log_form import EXPORT_VARIABLE

from tests.support.recorded_spans import ABOVE, HEADERS, TRACE_ID, Recorded

needs_sdk = pytest.mark.skipif(not tracers.installed(), reason="opentelemetry-sdk is not installed")


def test_nothing_is_imported_where_traces_are_not_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in sys.modules if each.split(".")[0] == "opentelemetry"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    monkeypatch.delitem(sys.modules, "wavepp_worker.dynamo.span_exporter", raising=False)
    assert make_tracer({}) is None
    assert make_tracer({EXPORT_VARIABLE: "false"}) is None
    assert "wavepp_worker.dynamo.span_exporter" not in sys.modules


def test_a_worker_without_the_library_runs_and_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracers, "installed", lambda: False)
    with caplog.at_level(logging.WARNING):
        assert make_tracer({EXPORT_VARIABLE: "1"}) is None
    (record,) = caplog.records
    assert "wavepp-worker[tracing]" in record.getMessage()


@needs_sdk
def test_what_opentelemetry_does_not_take_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1000000")
    with pytest.raises(ConfigError, match=r"OTEL_.* say: max_export_batch_size must be less than"):
        make_tracer({EXPORT_VARIABLE: "1", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"})


@needs_sdk
def test_a_request_is_a_child_of_dynamos_span_and_its_parts_are_its_children() -> None:
    recorded = Recorded()
    recorded.tracer.replica = "c0ffee"
    before = time.time_ns()
    span = recorded.tracer.begin("wavepp.prefill", "r1", HEADERS)
    assert span is not None
    now = time.monotonic()
    part = Span("outer", now + 1.0, now + 3.0, {"number": 5}, (Span("inner", now + 2.0, now + 2.5),))
    span.add(part)
    span.end({"wavepp.prompt_tokens": 3})
    span.add(Span("later", now + 4.0, now + 5.0))
    whole, outer, inner, later = (
        recorded.named(each) for each in ("wavepp.prefill", "outer", "inner", "later")
    )
    assert {each.context.trace_id for each in recorded.spans()} == {TRACE_ID}
    assert whole.parent.span_id == ABOVE
    assert outer.parent.span_id == later.parent.span_id == whole.context.span_id
    assert inner.parent.span_id == outer.context.span_id
    assert dict(whole.attributes) == {
        "wavepp.request_id": "r1",
        "wavepp.replica": "c0ffee",
        "wavepp.prompt_tokens": 3,
    }
    assert outer.attributes["number"] == 5
    assert before <= whole.start_time <= whole.end_time <= time.time_ns()
    assert inner.end_time - inner.start_time == pytest.approx(0.5e9, abs=1000)
    assert inner.start_time - before == pytest.approx(2e9, abs=10e9)
    assert inner.start_time - outer.start_time == pytest.approx(1e9, abs=1000)


@needs_sdk
def test_a_request_that_failed_says_why() -> None:
    recorded = Recorded()
    span = recorded.tracer.begin("wavepp.prefill", "r1", None)
    assert span is not None
    span.end({}, error="EngineDead: rank 1 is gone")
    failed = recorded.named("wavepp.prefill")
    assert failed.parent is None
    assert not failed.status.is_ok
    assert failed.status.description == "EngineDead: rank 1 is gone"


@needs_sdk
def test_a_trace_that_is_not_sampled_costs_no_span() -> None:
    recorded = Recorded()
    headers = {"traceparent": HEADERS["traceparent"][:-2] + "00"}
    assert recorded.tracer.begin("wavepp.prefill", "r1", headers) is None
    assert recorded.spans() == []


@needs_sdk
def test_a_receiver_that_hangs_does_not_hold_a_worker_that_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

    let_go, asked = threading.Event(), threading.Event()
    released: list[bool] = []

    class Hanging(SpanExporter):
        def export(self, spans: Sequence[Any]) -> SpanExportResult:
            asked.set()
            released.append(let_go.wait(30))
            return SpanExportResult.FAILURE

    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(Hanging()))
    tracer = Tracer(provider)
    span = tracer.begin("wavepp.prefill", "r1", None)
    assert span is not None
    span.end({})
    monkeypatch.setattr(tracers, "CLOSE_SECONDS", 0.1)
    try:
        tracer.close()
        assert asked.wait(30)
        assert released == [], "the receiver still hangs"
    finally:
        let_go.set()


@needs_sdk
@pytest.mark.parametrize(("named", "service"), [(None, "dynamo"), ("mine", "mine")])
def test_its_service_is_dynamos(monkeypatch: pytest.MonkeyPatch, named: str | None, service: str) -> None:
    environment = {EXPORT_VARIABLE: "1", **({} if named is None else {"OTEL_SERVICE_NAME": named})}
    monkeypatch.delenv("OTEL_SERVICE_NAME", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    tracer = make_tracer(environment)
    assert tracer is not None
    try:
        assert tracer._provider.resource.attributes["service.name"] == service
    finally:
        tracer.close()

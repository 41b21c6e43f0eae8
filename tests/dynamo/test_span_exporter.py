"""Spans reach a real receiver, and one that is away costs one warning."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pytest
from wavepp_worker.dynamo.tracer import installed, make_tracer
from wavepp_worker.log_form import EXPORT_VARIABLE

from tests.support.otlp_receiver import receiving, receiving_grpc
from tests.support.recorded_spans import ABOVE, HEADERS, TRACE_ID

if not installed():
    pytest.skip("opentelemetry-sdk is not installed", allow_module_level=True)

from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from wavepp_worker.dynamo.span_exporter import QuietExporter, make_exporter


def exporting_to(url: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    environment = {
        EXPORT_VARIABLE: "true",
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{url}/v1/traces",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return environment


def test_spans_reach_the_receiver_that_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    with receiving() as receiver:
        tracer = make_tracer(exporting_to(receiver.url, monkeypatch))
        assert tracer is not None
        span = tracer.begin("wavepp.prefill", "r1", HEADERS)
        assert span is not None
        span.end({})
        tracer.close()
        (got,) = receiver.spans
    assert got.name == "wavepp.prefill"
    assert int.from_bytes(got.trace_id, "big") == TRACE_ID
    assert int.from_bytes(got.parent_span_id, "big") == ABOVE


def test_a_receiver_that_refuses_is_told_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with receiving(status=400) as receiver, caplog.at_level(logging.DEBUG):
        exporter = make_exporter(exporting_to(receiver.url, monkeypatch))
        for _ in range(3):
            assert exporter.export([]) is SpanExportResult.FAILURE
        exporter.shutdown()
        assert receiver.asked == 3
        ours = [record for record in caplog.records if record.levelno >= logging.WARNING]
    (record,) = ours
    assert f"{receiver.url}/v1/traces" in record.getMessage()


def test_it_is_grpc_unless_asked_otherwise_as_with_dynamo(monkeypatch: pytest.MonkeyPatch) -> None:
    with receiving_grpc() as receiver:
        environment = {
            EXPORT_VARIABLE: "1",
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"http://{receiver.address}",
        }
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        tracer = make_tracer(environment)
        assert tracer is not None
        span = tracer.begin("wavepp.decode", "r1", HEADERS)
        assert span is not None
        span.end({})
        tracer.close()
        (got,) = receiver.spans
    assert int.from_bytes(got.parent_span_id, "big") == ABOVE


def test_after_it_worked_again_a_failure_is_told_of_again(caplog: pytest.LogCaptureFixture) -> None:
    class Flaky(SpanExporter):
        answers = iter(
            [OSError("no route"), SpanExportResult.FAILURE, SpanExportResult.SUCCESS, OSError("away")]
        )

        def export(self, spans: Sequence[Any]) -> SpanExportResult:
            answer = next(self.answers)
            if isinstance(answer, Exception):
                raise answer
            return answer

    exporter = QuietExporter(Flaky(), "http://somewhere")
    failure, success = SpanExportResult.FAILURE, SpanExportResult.SUCCESS
    with caplog.at_level(logging.WARNING):
        assert [exporter.export([]) for _ in range(4)] == [failure, failure, success, failure]
    told = [record.getMessage().rpartition(": ")[2] for record in caplog.records]
    assert told == ["no route", "away"]

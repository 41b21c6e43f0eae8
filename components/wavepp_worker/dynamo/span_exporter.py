"""Where spans go: to an OTLP receiver, over what Dynamo's own go over. One that is away is told of once."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

logger = logging.getLogger(__name__)

PROTOCOL_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
"""What spans go over; the first that is set counts. As with Dynamo, gRPC unless it is ``http/protobuf``."""
ENDPOINT_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


class QuietExporter(SpanExporter):
    """Exports with another exporter, whose failures cost spans and one warning, until it works again."""

    def __init__(self, exporter: SpanExporter, where: str) -> None:
        """``where``: what the warning calls the receiver."""
        self._exporter = exporter
        self._where = where
        self._failing = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        try:
            result = self._exporter.export(spans)
            why = "it refused them, or did not answer"
        except Exception as error:
            result, why = SpanExportResult.FAILURE, str(error)
        failed = result is not SpanExportResult.SUCCESS
        if failed and not self._failing:
            logger.warning(
                "spans cannot be exported to %s, and are dropped until they can: %s", self._where, why
            )
        self._failing = failed
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)


def make_exporter(environment: Mapping[str, str]) -> QuietExporter:
    """The exporter that the environment asks for; the library reads the endpoint there itself."""
    protocol = next((environment[name] for name in PROTOCOL_VARIABLES if environment.get(name)), "grpc")
    exporter: Any
    if protocol == "http/protobuf":
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as OverHttp

        exporter, usual = OverHttp(), "http://localhost:4318"
    else:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as OverGrpc

        exporter, usual = OverGrpc(), "http://localhost:4317"
    # It warns of each batch and each attempt.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL + 1)
    where = next((environment[name] for name in ENDPOINT_VARIABLES if environment.get(name)), usual)
    return QuietExporter(exporter, where)

"""Traces that stay in memory."""

from __future__ import annotations

from typing import Any

from wavepp_worker.dynamo.tracer import Tracer

TRACE_ID, ABOVE = 0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7
HEADERS = {"traceparent": f"00-{TRACE_ID:032x}-{ABOVE:016x}-01"}
"""Of a span of Dynamo's."""


class Recorded:
    """A tracer, and the spans that it has made and ended."""

    def __init__(self) -> None:
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = Tracer(provider)

    def spans(self) -> list[Any]:
        return list(self._exporter.get_finished_spans())

    def named(self, name: str) -> Any:
        (span,) = [each for each in self.spans() if each.name == name]
        return span

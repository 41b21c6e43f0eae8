"""Records spans with OpenTelemetry, as children of Dynamo's. Imports it only where traces are exported."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from wavepp_worker.dynamo.spans import REPLICA, REQUEST_ID, Attribute, Span
from wavepp_worker.errors import ConfigError
from wavepp_worker.log_form import EXPORT_VARIABLE, means_yes

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

logger = logging.getLogger(__name__)

SERVICE_VARIABLE = "OTEL_SERVICE_NAME"
DYNAMOS_SERVICE = "dynamo"
"""What Dynamo calls its processes without that."""
CLOSE_SECONDS = 2.0
"""How long a worker that stops waits for its last spans to be exported."""


class OpenSpan:
    """A request's span that has begun; parts of it may be added before and after its end. Thread-safe."""

    def __init__(self, tracer: Any, span: Any) -> None:
        self._tracer = tracer
        self._span = span
        # Of this moment, as clocks of the wall are set right now and then.
        self._epoch = time.time_ns() - time.monotonic_ns()

    def add(self, part: Span) -> None:
        """Record what was part of it."""
        self._record(part, self._span)

    def end(self, attributes: Mapping[str, Attribute], error: str | None = None) -> None:
        """It ends now, with ``error`` as its reason if it failed."""
        from opentelemetry.trace import Status, StatusCode

        self._span.set_attributes(attributes)
        if error is not None:
            self._span.set_status(Status(StatusCode.ERROR, error))
        self._span.end(self._epoch + time.monotonic_ns())

    def _record(self, part: Span, parent: Any) -> None:
        from opentelemetry.trace import set_span_in_context

        made = self._tracer.start_span(
            part.name,
            context=set_span_in_context(parent),
            attributes=part.attributes,
            start_time=self._at(part.start),
        )
        for inner in part.parts:
            self._record(inner, made)
        made.end(self._at(part.end))

    def _at(self, seconds: float) -> int:
        return self._epoch + round(seconds * 1e9)


class Tracer:
    """Makes spans of requests.

    Attributes:
        replica: the worker's id in discovery, in hexadecimal, once it has one.
    """

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("wavepp_worker")
        self.replica = ""

    def begin(self, name: str, request_id: str, headers: Mapping[str, str] | None) -> OpenSpan | None:
        """A request's span begins now; None if its trace is not sampled.

        Args:
            headers: the W3C headers of the span above it; without any it begins a trace.
        """
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        above = TraceContextTextMapPropagator().extract(headers or {})
        attributes = {REQUEST_ID: request_id, REPLICA: self.replica}
        span = self._tracer.start_span(name, context=above, attributes=attributes)
        return OpenSpan(self._tracer, span) if span.is_recording() else None

    def close(self) -> None:
        """Export what is left, in ``CLOSE_SECONDS`` or not at all."""
        # Its own bound is half a minute.
        closing = threading.Thread(target=self._provider.shutdown, name="last spans", daemon=True)
        closing.start()
        closing.join(CLOSE_SECONDS)


def installed() -> bool:
    """Whether the extra ``tracing`` is."""
    return find_spec("opentelemetry") is not None and find_spec("opentelemetry.sdk") is not None


def make_tracer(environment: Mapping[str, str]) -> Tracer | None:
    """What the environment asks for; None, and nothing imported, unless Dynamo exports traces as well.

    Raises:
        ConfigError: OpenTelemetry does not take what its own variables say.
    """
    if not means_yes(environment.get(EXPORT_VARIABLE, "")):
        return None
    if not installed():
        logger.warning(
            "%s is set, but OpenTelemetry is not installed, so that traces have Dynamo's spans alone; install "
            "wavepp-worker[tracing] to have admission, waves and hand-offs in them",
            EXPORT_VARIABLE,
        )
        return None
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    from wavepp_worker.dynamo.span_exporter import make_exporter

    # The SDK's own reading of the variable would call a process without it unknown.
    named = {} if environment.get(SERVICE_VARIABLE) else {SERVICE_NAME: DYNAMOS_SERVICE}
    try:
        provider = TracerProvider(resource=Resource.create(named), shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(make_exporter(environment)))
    except ValueError as error:
        raise ConfigError(
            f"{EXPORT_VARIABLE} is set, but OpenTelemetry does not take what its variables (OTEL_...) say: {error}; "
            f"mend the variable, or leave {EXPORT_VARIABLE} out"
        ) from error
    return Tracer(provider)

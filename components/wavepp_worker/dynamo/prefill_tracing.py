"""The spans of one replica's prefills; of those that are handed off, until that is over."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import msgspec

from wavepp_worker.dynamo.spans import PREFILL, offered_span, prefill_attributes, prefill_spans
from wavepp_worker.dynamo.tracer import OpenSpan, Tracer
from wavepp_worker.runtime.protocol.requests import HandedOff, PrefillRequest, PrefillResult


class TracedPrefill:
    """One prefill, which may be traced.

    Attributes:
        request: to be submitted.
        span: None if it is not traced.
        offered_bytes: of KV.
    """

    def __init__(self, request: PrefillRequest, span: OpenSpan | None) -> None:
        self.request = request if span is None else msgspec.structs.replace(request, traced=True)
        self.span = span
        self.offered_bytes = 0

    def answered(self, result: PrefillResult) -> None:
        """It has its first token; its KV may be held still, or not any more."""
        if self.span is not None:
            for part in prefill_spans(result):
                self.span.add(part)
            self.span.end(prefill_attributes(result))


class PrefillTracing:
    """Follows the requests of a replica. Thread-safe.

    Attributes:
        tracer: None where nothing is traced.
    """

    def __init__(self, tracer: Tracer | None) -> None:
        self.tracer = tracer
        self._lock = threading.Lock()
        self._handing_off: dict[str, TracedPrefill] = {}

    @contextmanager
    def begun(self, request: PrefillRequest, headers: Mapping[str, str] | None) -> Iterator[TracedPrefill]:
        """The time until a request is answered or fails.

        Args:
            headers: as of ``Tracer.begin``.
        """
        name = request.request_id
        span = None if self.tracer is None else self.tracer.begin(PREFILL, name, headers)
        traced = TracedPrefill(request, span)
        try:
            yield traced
        except BaseException as error:
            if span is not None:
                with self._lock:
                    if self._handing_off.get(name) is traced:
                        del self._handing_off[name]
                span.end({}, error=f"{type(error).__name__}: {error}")
            raise

    def submitted(self, traced: TracedPrefill, offered_bytes: int) -> None:
        """The engine has taken a request, whose id nobody else has now, and will offer so many bytes of KV."""
        if traced.span is not None:
            traced.offered_bytes = offered_bytes
            with self._lock:
                self._handing_off[traced.request.request_id] = traced

    def handed_off(self, ended: HandedOff) -> None:
        """No rank holds the KV of an answered request any more."""
        with self._lock:
            traced = self._handing_off.pop(ended.request_id, None)
        if traced is not None and traced.span is not None:
            traced.span.add(offered_span(ended, traced.offered_bytes))

"""A worker's log lines about one request as JSON, with the ids by which all processes' lines and spans are found.

Dynamo's own handler takes the text alone. All other lines stay with it.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from typing import NamedTuple

from wavepp_worker.log_form import REQUEST_ID, json_line, lines_are_json


class TraceIds(NamedTuple):
    """Of Dynamo's span of a request, in hexadecimal; None where it has none."""

    trace_id: str | None
    span_id: str | None


class RequestLog(logging.Handler):
    """Writes records that are about a request to standard error."""

    def __init__(self, trace_of: Callable[[str], tuple[str, TraceIds] | None]) -> None:
        """``trace_of``: the client's id and the trace of a request that is being answered, by any id it has here."""
        super().__init__()
        self._trace_of = trace_of
        self.addFilter(_about_a_request)

    def emit(self, record: logging.LogRecord) -> None:
        given = str(getattr(record, REQUEST_ID))
        request_id, ids = self._trace_of(given) or (given, TraceIds(None, None))
        trace = {name: value for name, value in ids._asdict().items() if value}
        # One write, as other threads log to the same stream.
        sys.stderr.write(json_line(record, **{REQUEST_ID: request_id}, **trace) + "\n")
        sys.stderr.flush()


def log_requests(
    environment: Mapping[str, str], trace_of: Callable[[str], tuple[str, TraceIds] | None]
) -> None:
    """Have lines about requests written so where lines are JSON, in place of what the handlers there make of them.

    Args:
        trace_of: see ``RequestLog``.
    """
    if not lines_are_json(environment):
        return
    root = logging.getLogger()
    for handler in root.handlers:
        handler.addFilter(_about_no_request)
    root.addHandler(RequestLog(trace_of))


def _about_a_request(record: logging.LogRecord) -> bool:
    return hasattr(record, REQUEST_ID)


def _about_no_request(record: logging.LogRecord) -> bool:
    return not hasattr(record, REQUEST_ID)

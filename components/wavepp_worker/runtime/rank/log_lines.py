"""A rank's log lines look like those of Dynamo's logger, beside which they stand: text, or JSON where that is."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from wavepp_worker.log_form import (
    REQUEST_ID,
    json_line,
    line_level,
    line_time,
    lines_are_json,
)


class LogLines(logging.Formatter):
    """Time, level, who says it, and what; a traceback follows, or is in the JSON object.

    That also has the ``request_id`` that a client knows, in lines about one request.
    """

    def __init__(self, rank: int, as_json: bool) -> None:
        super().__init__()
        self._rank = rank
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        if self._as_json:
            request_id = getattr(record, REQUEST_ID, None)
            # Among ranks a request's id ends with a number of the engine's.
            about = {} if request_id is None else {REQUEST_ID: request_id.rpartition("-")[0]}
            return json_line(record, rank=self._rank, **about)
        when, level, text = line_time(record.created), line_level(record), record.getMessage()
        trace = "\n" + self.formatException(record.exc_info) if record.exc_info else ""
        return f"{when} {level:>5} {record.name}: {text} rank={self._rank}{trace}"


def log_as_lines(rank: int, environment: Mapping[str, str]) -> None:
    """Have this process's warnings and errors written to standard error so."""
    handler = logging.StreamHandler()
    handler.setFormatter(LogLines(rank, lines_are_json(environment)))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])

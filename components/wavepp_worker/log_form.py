"""The form of Dynamo's log lines, which ours share, as they stand beside them."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from datetime import datetime, timezone

from wavepp_worker.dynamo_version import dynamo_is_at_least

FORMAT_VARIABLE = "DYN_LOGGING_CONSOLE_FORMAT"
"""Dynamo's, from 1.5: ``jsonl`` or ``readable``; it counts before the older one, unless it is empty."""
JSON_VARIABLE = "DYN_LOGGING_JSONL"
"""Dynamo's: whether its lines are JSON."""
LOCAL_VARIABLE = "DYN_LOG_USE_LOCAL_TZ"
"""Dynamo's: whether times in its lines are those of the machine's time zone, and not of UTC."""
EXPORT_VARIABLE = "OTEL_EXPORT_ENABLED"
"""Dynamo's: whether its processes export traces and what they log."""
REQUEST_ID = "request_id"
"""What Dynamo's lines call the request that they are about, and our records as well."""
_FIRST_WITH_FORMAT = (1, 5)
_TRUE = ("1", "true", "on", "yes")
_LEVELS = {"WARNING": "WARN", "CRITICAL": "ERROR"}
_traceback = logging.Formatter().formatException


def lines_are_json(environment: Mapping[str, str]) -> bool:
    """Whether each line is to be a JSON object, and not text."""
    form = environment.get(FORMAT_VARIABLE, "").strip().lower()
    if form and dynamo_is_at_least(*_FIRST_WITH_FORMAT):
        return form == "jsonl"
    return means_yes(environment.get(JSON_VARIABLE, ""))


def means_yes(value: str) -> bool:
    """Whether a variable of this value switches something on, as Dynamo reads it."""
    return value.strip().lower() in _TRUE


def line_time(seconds: float) -> str:
    """A moment, in seconds since 1970, as a line has it: to the microsecond, in UTC unless Dynamo's are not."""
    moment = datetime.fromtimestamp(seconds, timezone.utc)
    if means_yes(os.environ.get(LOCAL_VARIABLE, "")):
        return moment.astimezone().isoformat(timespec="microseconds")
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def line_level(record: logging.LogRecord) -> str:
    """A record's level as Dynamo calls it."""
    return _LEVELS.get(record.levelname, record.levelname)


def json_line(record: logging.LogRecord, **more: object) -> str:
    """A record as a JSON object on one line, with its traceback in the message, and ``more``."""
    trace = "\n" + _traceback(record.exc_info) if record.exc_info else ""
    line = {
        "time": line_time(record.created),
        "level": line_level(record),
        "target": record.name,
        "message": record.getMessage() + trace,
        **more,
    }
    return json.dumps(line, ensure_ascii=False)


def of_request(request_id: str) -> dict[str, str]:
    """The ``extra`` of a record about one request."""
    return {REQUEST_ID: request_id}

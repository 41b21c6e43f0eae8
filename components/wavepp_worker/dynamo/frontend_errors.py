"""How Dynamo's frontend writes an error, as an answer and as an event of a stream. Pure."""

from __future__ import annotations

import json
import re
from http import HTTPStatus
from typing import Any

_EVENT = re.compile(rb'^data: ?(\{"error":.*\})\r?$', re.MULTILINE)


def failure_in(events: bytes) -> re.Match[bytes] | None:
    """The event that says that the frontend or a worker failed, not that the request is wrong; its group 1 is JSON."""
    found = _EVENT.search(events)
    error = _error(found)
    if error is None:
        return None
    code = error.get("code")
    return found if not isinstance(code, int) or code >= 500 else None


def refusal(events: bytes) -> HTTPStatus | None:
    """The status of a request that is wrong, if a stream begins with that.

    Dynamo 1.6 begins a stream some milliseconds after it was asked, and a worker may refuse later.
    """
    try:
        status = HTTPStatus((_error(_EVENT.match(events)) or {}).get("code", 0))
    except ValueError:
        return None
    return status if 400 <= status < 500 else None


def error_event(sentence: str) -> bytes:
    """The JSON of an event that ends a stream with 503; the sentence is told with the advice to ask again."""
    error = {"message": f"{sentence}; ask again", "type": "service_unavailable", "code": 503}
    return json.dumps({"error": error}).encode()


def message(body: bytes) -> str:
    """What the frontend says in an answer that is an error, or in the event that a stream begins with."""
    found = _EVENT.match(body)
    try:
        value = json.loads(body if found is None else found[1])
        error = value.get("error", value)
        return str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, AttributeError, KeyError):
        return body.decode(errors="replace").strip()[:300] or "the request failed"


def _error(event: re.Match[bytes] | None) -> dict[str, Any] | None:
    """What an event says of the error; None if there is none, or nothing more than a text."""
    try:
        error = None if event is None else json.loads(event[1])["error"]
    except ValueError:
        return None
    return error if isinstance(error, dict) else None

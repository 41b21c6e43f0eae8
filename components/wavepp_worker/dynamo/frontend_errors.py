"""How Dynamo's frontend writes an error, as an answer and as an event of a stream. Pure."""

from __future__ import annotations

import json
import re
from http import HTTPStatus

_EVENT = re.compile(rb'^data: ?(\{"error":.*\})\r?$', re.MULTILINE)


def failure_in(events: bytes) -> re.Match[bytes] | None:
    """The event that says that the frontend or a worker failed, not that the request is wrong; its group 1 is JSON."""
    found = _EVENT.search(events)
    if found is None:
        return None
    try:
        code = json.loads(found[1])["error"].get("code")
    except (ValueError, AttributeError):
        return None
    return found if not isinstance(code, int) or code >= 500 else None


def refusal(events: bytes) -> HTTPStatus | None:
    """The status of a request that is wrong, if a stream begins with that.

    Dynamo 1.6 begins a stream some milliseconds after it was asked, and a worker may refuse later.
    """
    found = _EVENT.match(events)
    if found is None:
        return None
    try:
        status = HTTPStatus(json.loads(found[1])["error"]["code"])
    except (ValueError, TypeError, KeyError):
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

"""What a frontend says of itself while it takes no more requests and its last answers end. Pure.

The same as Dynamo's, which is told last and would not say so yet, so that whoever sends requests stops at once.
"""

from __future__ import annotations

from collections.abc import Mapping

STATUS = 503
_BODIES: Mapping[str, Mapping[str, object]] = {
    "/health": {"status": "not_ready", "stage": "draining", "message": "Service is not ready"},
    "/live": {"status": "shutting_down", "message": "Service is shutting down"},
    "/v1/models": {"message": "Service is not ready", "type": "Service Unavailable", "code": STATUS},
}


def drain_answer(method: str, path: str) -> Mapping[str, object] | None:
    """The body of the answer, whose status is ``STATUS``; None where the frontend answers as ever."""
    return _BODIES.get(path) if method in ("GET", "HEAD") else None

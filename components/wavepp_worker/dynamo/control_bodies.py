"""What a worker's control is, and what its body may say."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from wavepp_worker.dynamo.request_ids import possible_ids
from wavepp_worker.errors import InvalidRequest

Control = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
"""Takes a JSON object and answers one. InvalidRequest: that was wrong; another WaveppError: it cannot be done."""


def check_names(control: str, body: Mapping[str, Any], takes: Mapping[str, str]) -> None:
    """Refuse what a control does not know.

    Args:
        takes: the names it knows, each with what it means, to follow the name.

    Raises:
        InvalidRequest: ``body`` has another.
    """
    if others := body.keys() - takes.keys():
        known = " and ".join(f"{name}, {meaning}" for name, meaning in takes.items()) or "nothing"
        raise InvalidRequest(f"{min(others)}: unknown; {control} takes {known}")


def asked_ids(body: Mapping[str, Any]) -> tuple[str | None, ...]:
    """The ids that workers may know the request by that ``why`` is asked of; None alone for those that wait longest.

    Raises:
        InvalidRequest: ``body`` says another thing.
    """
    check_names("why", body, {"request_id": "or nothing"})
    given = body.get("request_id")
    if given is not None and not isinstance(given, str):
        raise InvalidRequest(f"request_id={given!r} should be a text")
    if given is not None and not given.strip():
        raise InvalidRequest(
            "request_id is empty; give one, or leave it out for the requests that wait longest"
        )
    return (None,) if given is None else possible_ids(given)


def seconds(body: Mapping[str, Any], name: str, default: float, most: float) -> float:
    """A number of seconds that ``body`` may have.

    Raises:
        InvalidRequest: it is not one from 0 to ``most``.
    """
    value = body.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise InvalidRequest(f"{name}={value!r} should be a number of seconds from 0 to {most:g}")
    return float(value)

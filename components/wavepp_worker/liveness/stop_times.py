"""How long a process that is told to stop may go on. Pure.

The launcher tells it in Dynamo's own variables, so that a worker started without the launcher keeps to the same rules.
"""

from __future__ import annotations

from collections.abc import Mapping

WORKER_VARIABLE = "DYN_WORKER_GRACEFUL_SHUTDOWN_TIMEOUT"
"""Whole seconds until Dynamo ends a worker that was told to stop, whatever it does; 30 if it is not set."""
FRONTEND_VARIABLE = "DYN_HTTP_GRACEFUL_SHUTDOWN_TIMEOUT_SECS"
"""Whole seconds for which a frontend that was told to stop waits for its answers."""
DYNAMOS_SECONDS = 30
CLOSING_SECONDS = 5
"""What is left of a worker's time for closing its engine, as Dynamo, too, has it for prefill workers."""
KILL_SECONDS = 10
"""That a process has to end in after its requests have had their time, before the launcher kills it: Dynamo's own limit
comes first."""

LEAVING = "LEAVING: "
"""What the line begins with by which a process says that it was told to stop, and takes no new requests."""


def stop_variables(seconds: int) -> dict[str, str]:
    """The environment of processes whose requests have ``seconds`` to end."""
    return {WORKER_VARIABLE: str(seconds + CLOSING_SECONDS), FRONTEND_VARIABLE: str(seconds)}


def request_seconds(environment: Mapping[str, str]) -> int:
    """How long the requests of a worker that is told to stop have to end."""
    return max(0, _whole(environment, WORKER_VARIABLE, DYNAMOS_SECONDS) - CLOSING_SECONDS)


def answer_seconds(environment: Mapping[str, str]) -> int:
    """How long the answers of a frontend that is told to stop have to end."""
    return _whole(environment, FRONTEND_VARIABLE, DYNAMOS_SECONDS - CLOSING_SECONDS)


def _whole(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, "")
    # What is no number counts as not set, as Dynamo has it.
    return int(text) if text.isdecimal() else default

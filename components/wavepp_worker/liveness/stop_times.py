"""How long a process that is told to stop may go on. Pure.

Dynamo's own variables say so, also to a worker that is started without the launcher; this one sets them only where its
user asks for other times.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

WORKER_VARIABLE = "DYN_WORKER_GRACEFUL_SHUTDOWN_TIMEOUT"
"""Whole seconds until Dynamo ends a worker that was told to stop, whatever it does; 30 if it is not set."""
FRONTEND_VARIABLE = "DYN_HTTP_GRACEFUL_SHUTDOWN_TIMEOUT_SECS"
"""Whole seconds for which a frontend that was told to stop waits for its answers; 5 if it is not set."""
GRACE_VARIABLE = "DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS"
"""Seconds for which a worker that was told to stop, and has left discovery, goes on whatever it has to do, so that
frontends hear of it; 5 if it is not set."""
DYNAMOS_WORKER_SECONDS = 30
DYNAMOS_ANSWER_SECONDS = 5
DYNAMOS_GRACE_SECONDS = 5.0
CLOSING_SECONDS = 5
"""What is left of a worker's time for closing its engine, as Dynamo, too, has it for prefill workers."""
KILL_SECONDS = 10
"""That all processes have to end in, beside their graces, after requests have had their time, before the launcher kills
them: Dynamo's own limit comes first."""

LEAVING = "LEAVING: "
"""What the line begins with by which a process says that it was told to stop, and takes no new requests."""


@dataclass(frozen=True)
class StopTimes:
    """What the processes of a launcher have to end what they do, in seconds.

    Attributes:
        requests: those of a worker.
        answers: those of a frontend.
        variables: what they are told of it; nothing where they have what Dynamo, or the environment, gives them.
    """

    requests: int = DYNAMOS_WORKER_SECONDS - CLOSING_SECONDS
    answers: int = DYNAMOS_ANSWER_SECONDS
    variables: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, asked: int | None, environment: Mapping[str, str]) -> StopTimes:
        """``asked`` is what the user wants for both, in place of what ``environment`` or else Dynamo says."""
        variables = {} if asked is None else stop_variables(asked, environment)
        whole = {**environment, **variables}
        return cls(request_seconds(whole), answer_seconds(whole), variables)


def stop_variables(seconds: int, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of processes whose requests have ``seconds`` to end, or a worker's grace if that is longer."""
    of_worker = max(seconds, math.ceil(grace_seconds(environment)))
    return {WORKER_VARIABLE: str(of_worker + CLOSING_SECONDS), FRONTEND_VARIABLE: str(seconds)}


def request_seconds(environment: Mapping[str, str]) -> int:
    """How long the requests of a worker that is told to stop have to end."""
    return max(0, _whole(environment, WORKER_VARIABLE, DYNAMOS_WORKER_SECONDS) - CLOSING_SECONDS)


def answer_seconds(environment: Mapping[str, str]) -> int:
    """How long the answers of a frontend that is told to stop have to end."""
    return _whole(environment, FRONTEND_VARIABLE, DYNAMOS_ANSWER_SECONDS)


def grace_seconds(environment: Mapping[str, str]) -> float:
    """How long a worker that is told to stop goes on at least."""
    try:
        seconds = float(environment.get(GRACE_VARIABLE) or DYNAMOS_GRACE_SECONDS)
    except ValueError:
        return DYNAMOS_GRACE_SECONDS
    return max(0.0, seconds) if math.isfinite(seconds) else DYNAMOS_GRACE_SECONDS


def _whole(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, "")
    # What is no number counts as not set, as Dynamo has it.
    return int(text) if text.isdecimal() else default

"""What a process is told of the time it has to stop in, and what it makes of that."""

from __future__ import annotations

import pytest
from wavepp_worker.liveness.stop_times import (
    CLOSING_SECONDS,
    DYNAMOS_SECONDS,
    KILL_SECONDS,
    WORKER_VARIABLE,
    request_seconds,
    stop_variables,
)


@pytest.mark.parametrize("seconds", [0, 1, 25, 1000])
def test_requests_have_the_time_that_the_launcher_gives_them(seconds: int) -> None:
    variables = stop_variables(seconds)
    assert request_seconds(variables) == seconds
    assert seconds < int(variables[WORKER_VARIABLE]) < seconds + KILL_SECONDS, (
        "nobody is ended before it fails its requests itself"
    )


@pytest.mark.parametrize("text", [None, "", "-3", "2.5", "soon"])
def test_what_is_no_number_is_dynamos_own_limit(text: str | None) -> None:
    environment = {} if text is None else {WORKER_VARIABLE: text}
    assert request_seconds(environment) == DYNAMOS_SECONDS - CLOSING_SECONDS


def test_there_is_no_time_below_none() -> None:
    assert request_seconds({WORKER_VARIABLE: "2"}) == 0

"""What a process is told of the time it has to stop in, and what it makes of that."""

from __future__ import annotations

import pytest
from wavepp_worker.liveness.stop_times import (
    CLOSING_SECONDS,
    DYNAMOS_ANSWER_SECONDS,
    DYNAMOS_GRACE_SECONDS,
    DYNAMOS_WORKER_SECONDS,
    FRONTEND_VARIABLE,
    GRACE_VARIABLE,
    KILL_SECONDS,
    WORKER_VARIABLE,
    StopTimes,
    answer_seconds,
    grace_seconds,
    request_seconds,
)


@pytest.mark.parametrize("seconds", [5, 25, 1000])
def test_requests_have_the_time_that_is_asked_for(seconds: int) -> None:
    times = StopTimes.of(seconds, {WORKER_VARIABLE: "7", FRONTEND_VARIABLE: "7"})
    assert (times.requests, times.answers) == (seconds, seconds)
    assert (request_seconds(times.variables), answer_seconds(times.variables)) == (seconds, seconds)
    assert seconds < int(times.variables[WORKER_VARIABLE]) < seconds + KILL_SECONDS, (
        "nobody is ended before it fails its requests itself"
    )


@pytest.mark.parametrize(("grace", "least"), [(None, 5), ("1", 1), ("6.5", 7), ("0", 0)])
def test_dynamo_ends_no_worker_within_its_grace(grace: str | None, least: int) -> None:
    environment = {} if grace is None else {GRACE_VARIABLE: grace}
    times = StopTimes.of(0, environment)
    assert (times.requests, times.answers) == (least, 0)
    assert int(times.variables[WORKER_VARIABLE]) == least + CLOSING_SECONDS


def test_who_asks_for_nothing_has_what_dynamo_or_the_environment_says() -> None:
    of_dynamo = StopTimes(DYNAMOS_WORKER_SECONDS - CLOSING_SECONDS, DYNAMOS_ANSWER_SECONDS, {})
    assert StopTimes.of(None, {}) == of_dynamo == StopTimes()
    assert StopTimes.of(None, {WORKER_VARIABLE: "65", FRONTEND_VARIABLE: "40"}) == StopTimes(60, 40, {})


@pytest.mark.parametrize("text", [None, "", "-3", "2.5", "soon"])
def test_what_is_no_number_is_dynamos_own_limit(text: str | None) -> None:
    environment = {} if text is None else {WORKER_VARIABLE: text, FRONTEND_VARIABLE: text}
    assert request_seconds(environment) == DYNAMOS_WORKER_SECONDS - CLOSING_SECONDS
    assert answer_seconds(environment) == DYNAMOS_ANSWER_SECONDS


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *((text, DYNAMOS_GRACE_SECONDS) for text in (None, "", "soon", "inf", "nan")),
        *[("0", 0.0), ("2.5", 2.5), ("-3", 0.0)],
    ],
)
def test_a_grace_is_read_as_dynamo_reads_it(text: str | None, seconds: float) -> None:
    assert grace_seconds({} if text is None else {GRACE_VARIABLE: text}) == seconds


def test_there_is_no_time_below_none() -> None:
    assert request_seconds({WORKER_VARIABLE: "2"}) == 0

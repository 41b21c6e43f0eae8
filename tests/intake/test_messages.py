from __future__ import annotations

import json

import msgspec
import pytest
from wavepp_worker.errors import InvalidRequest
from wavepp_worker.intake.messages import (
    MOST_JOB_BYTES,
    Job,
    JobFailure,
    JobSampling,
    Running,
    read_job,
    read_state,
)


def test_a_job_is_plain_json_without_what_it_leaves_open() -> None:
    job = Job(id="a", token_ids=(1, 2), sampling=JobSampling(temperature=0.5))
    assert json.loads(job.encode()) == {"id": "a", "token_ids": [1, 2], "sampling": {"temperature": 0.5}}
    assert read_job(job.encode(), "a") == job


def test_jobs_that_ask_for_the_same_have_one_digest() -> None:
    job = Job(id="a", token_ids=(1, 2))
    same = msgspec.structs.replace(job, priority=3, replica="r", deadline_seconds=5.0)
    assert job.digest == same.digest
    for other in ({"token_ids": (1, 3)}, {"salt": "s"}, {"handoff": True}, {"sampling": JobSampling(seed=1)}):
        assert msgspec.structs.replace(job, **other).digest != job.digest


def test_what_cannot_be_sent_is_refused_by_its_sender() -> None:
    for job, says in (
        (Job(id="", token_ids=(1,)), "this is no job"),
        (Job(id="a"), "neither"),
        (Job(id="a", text="x" * MOST_JOB_BYTES), "a queue takes at most"),
        (Job(id="a", text="\ud800"), "cannot be sent"),
        (Job(id="a", token_ids=(1,), deadline_seconds=-1.0), "deadline_seconds"),
        (Job(id="a", token_ids=(1,), replica="r\n"), "replica"),
    ):
        with pytest.raises(InvalidRequest, match=says):
            job.encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b'{"state": "odd"}',
        b"\xff",
        b"[" * 9999,
        b'{"state": "running", "job": -1, "replica": "r", "attempt": 1}',
        b'{"state": "running", "job": 1, "replica": "r", "attempt": -1000000000000}',
        b'{"state": "waiting", "job": 9223372036854775808, "attempts": 1, "error": ""}',
        b'{"state": "waiting", "job": 1, "attempts": 1, "error": "", "forgiven": 99999999999999999999}',
    ],
)
def test_what_is_no_state_is_none(data: bytes) -> None:
    assert read_state(data) is None


def test_a_state_says_which_it_is() -> None:
    state = Running(job=3, replica="r", attempt=1)
    assert json.loads(msgspec.json.encode(state))["state"] == "running"
    assert read_state(msgspec.json.encode(state)) == state
    assert read_state(b'{"state": "failed", "code": "invalid", "error": "e"}') == JobFailure(
        code="invalid", error="e"
    )

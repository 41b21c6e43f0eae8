from __future__ import annotations

import pytest
from wavepp_worker.intake.decision import Begin, Drop, GiveUp, decide, superseded, under_way
from wavepp_worker.intake.job_ledger import Recorded
from wavepp_worker.intake.messages import JobFailure, JobResult, JobState, JobTimings, Running, Waiting

ANSWER = JobResult(
    id="a",
    digest="d",
    replica="r",
    attempt=1,
    first_token=1,
    logprob=None,
    top_logprobs=(),
    prompt_tokens=1,
    reused_tokens=0,
    timings=JobTimings(queued=0, admission=0, execution=0, total=0),
)
FAILURE = JobFailure(code="cancelled", error="e")


@pytest.mark.parametrize(
    ("state", "other_is_there", "decision"),
    [
        (None, False, Begin(1, 0)),
        (ANSWER, False, Drop()),
        (FAILURE, False, Drop()),
        (Running(job=1, replica="r", attempt=1), False, Begin(2, 7)),
        (Running(job=1, replica="r", attempt=1), True, Drop()),
        (Running(job=1, replica="r", attempt=1, forgiven=5), False, Begin(2, 7, 5)),
        (Waiting(job=0, attempts=0, error="e", forgiven=5), False, Begin(1, 7, 5)),
        (Waiting(job=1, attempts=0, error="e"), False, Begin(1, 7)),
        (Waiting(job=1, attempts=2, error="e"), False, Begin(3, 7)),
        (Waiting(job=1, attempts=3, error="why"), False, GiveUp(3, "why", 7)),
        (Waiting(job=1, attempts=3, error="e"), True, Drop()),
        (
            Running(job=1, replica="r", attempt=3),
            False,
            GiveUp(3, "replica r was not heard of while it ran the job", 7),
        ),
    ],
)
def test_what_follows_from_what_was_found(
    state: JobState | None, other_is_there: bool, decision: object
) -> None:
    found = None if state is None else Recorded(state, 7)
    assert decide(found, other_is_there=other_is_there, most_attempts=3) == decision


def test_only_another_message_that_was_begun_supersedes() -> None:
    assert superseded(None, 1) is None
    assert superseded(Recorded(ANSWER, 7), 1) is None
    assert superseded(Recorded(Running(job=1, replica="r", attempt=1), 7), 1) is None
    assert superseded(Recorded(Running(job=2, replica="r", attempt=1), 7), 1) == 2
    # Of a state that somebody forged, no message is known.
    assert superseded(Recorded(Waiting(job=0, attempts=0, error=""), 7), 1) is None


def test_what_is_answered_or_begun_by_another_message_is_not_under_way() -> None:
    assert under_way(Recorded(Running(job=1, replica="r", attempt=1), 7), 1)
    assert under_way(Recorded(Waiting(job=1, attempts=1, error="e"), 7), 1)
    assert not under_way(Recorded(Running(job=2, replica="r", attempt=1), 7), 1)
    for found in (None, Recorded(ANSWER, 7), Recorded(FAILURE, 7)):
        assert not under_way(found, 1)

"""Where a job is that no replica has."""

from __future__ import annotations

from wavepp_worker.intake.messages import Job
from wavepp_worker.intake.prefill_queue import PrefillQueue

from tests.intake.conftest import MakeIntake
from tests.support.fake_prefills import FakePrefills
from tests.support.waiting import wait_until


def test_a_job_that_nobody_takes_is_told_with_its_place(queue: PrefillQueue, make_intake: MakeIntake) -> None:
    paused = make_intake("r1", FakePrefills())
    paused.pause(paused=True)
    # Until it asks for none any more.
    wait_until(lambda: not queue.served())
    for each in ("first", "report 17", "d6415c17-e214-4dfe-a63c-97c89e84501e-0123456789abcdef"):
        queue.submit(Job(id=each, token_ids=(1, 2, 3)))
    wait_until(lambda: queue.depth() == 3)
    assert paused.queued("never sent") is None
    second, third = paused.queued("report 17"), paused.queued("d6415c17-e214-4dfe-a63c-97c89e84501e")
    assert second is not None
    assert third is not None
    assert (second.request_id, second.state) == ("report 17", "in the queue")
    assert second.sentence == "is in the queue of jobs, behind at most 1 other"
    assert third.sentence.endswith("behind at most 2 others")
    assert 0 <= second.seconds < 60
    queue.submit(Job(id="for r7", token_ids=(1, 2), replica="r7"))
    wait_until(lambda: paused.queued("for r7"))
    addressed = paused.queued("for r7")
    assert addressed is not None
    assert addressed.sentence.endswith("and addresses replica r7, which others may take it from")

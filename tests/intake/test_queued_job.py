"""Where a job is that no replica has."""

from __future__ import annotations

from contextlib import closing

from wavepp_worker.intake.config import IntakeConfig
from wavepp_worker.intake.intake import Intake
from wavepp_worker.intake.messages import Job
from wavepp_worker.intake.names import QueueName
from wavepp_worker.intake.prefill_queue import PrefillQueue

from tests.support.fake_prefills import FakePrefills
from tests.support.nats_servers import NatsServer
from tests.support.waiting import wait_until


def test_a_job_that_nobody_takes_is_told_with_its_place(
    server: NatsServer, name: QueueName, queue: PrefillQueue
) -> None:
    config = IntakeConfig(intake="nats", nats_server=server.url)
    with closing(Intake(FakePrefills(), config, name)) as paused:
        # Before it starts, or it may have asked for some.
        paused.pause(paused=True)
        paused.start("r1")
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

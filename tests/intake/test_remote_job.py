from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from wavepp_worker.intake import remote_job
from wavepp_worker.intake.messages import Answer, Job, JobState, Running
from wavepp_worker.intake.remote_job import RemoteJob
from wavepp_worker.intake.unresponsive_replicas import UnresponsiveReplicas

from tests.support.fake_placement import Chosen


class Silent:
    """A ``QueueClient`` with which a job says what a test lets it say."""

    def __init__(self) -> None:
        self.hear: Callable[[JobState], None] | None = None

    async def ask(self, job: Job, hear: Callable[[JobState], None]) -> Answer:
        self.hear = hear
        await asyncio.Event().wait()
        raise AssertionError

    async def cancel(self, job_id: str) -> None: ...


def test_only_a_beginning_counts_for_and_against_a_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is recorded of a job is looked up while nothing is heard: it said each time that its replica is well."""
    now = 100.0
    monkeypatch.setattr(remote_job.time, "monotonic", lambda: now)  # type: ignore[attr-defined]
    replicas, placement, client = UnresponsiveReplicas(), Chosen("r0"), Silent()

    def running(replica: str, attempt: int) -> None:
        assert client.hear is not None
        client.hear(Running(job=1, replica=replica, attempt=attempt))

    async def work() -> None:
        nonlocal now

        async def sent() -> RemoteJob:
            job = RemoteJob(client, Job(id="j", replica="r0"), placement, replicas, set(), set())  # type: ignore[arg-type]
            await asyncio.sleep(0)
            return job

        old = await sent()
        running("r0", 1)
        look_at_old = client.hear
        passed = await sent()
        now += 2
        placement.over = (over := []).append  # type: ignore[method-assign]
        running("r1", 1)
        assert look_at_old is not None
        look_at_old(Running(job=1, replica="r0", attempt=1))
        assert replicas.is_unresponsive("r0", now), "it has begun nothing since"
        now += 6
        running("r1", 1)
        running("r1", 2)
        now += 6
        assert not replicas.is_unresponsive("r0", now), "that was long ago"
        young = await sent()
        now += 0.3
        running("r1", 1)
        assert not replicas.is_unresponsive("r0", now), "taken along with older ones"
        for job in (old, passed, young):
            job.leave(done=False)
        await asyncio.wait({job._asking for job in (old, passed, young)})
        await asyncio.sleep(0)
        assert over == ["j", "j", "j"], "once each"

    asyncio.run(work())

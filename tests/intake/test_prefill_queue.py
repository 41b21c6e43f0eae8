from __future__ import annotations

import asyncio
import os
import re
import signal
import threading
import time

import pytest
from wavepp_worker.errors import InvalidRequest, QueueError, RequestAborted, RequestTimeout
from wavepp_worker.intake import answer_wait, queue_client
from wavepp_worker.intake.messages import Job
from wavepp_worker.intake.names import QueueName
from wavepp_worker.intake.prefill_queue import PrefillQueue, make_job
from wavepp_worker.model.sampling_params import SamplingParams

from tests.intake.conftest import MakeIntake
from tests.support.fake_prefills import FakePrefills
from tests.support.nats_servers import NatsServer


def test_jobs_are_made_of_what_an_engine_takes() -> None:
    job = make_job([1, 2], id="a", sampling=SamplingParams(temperature=0.5, seed=3), salt="s")
    assert (job.token_ids, job.salt, job.sampling.temperature, job.sampling.seed) == ((1, 2), "s", 0.5, 3)
    assert make_job("text").text == "text"
    assert make_job("text").id != make_job("text").id
    with pytest.raises(InvalidRequest, match="temperature"):
        make_job([1], temperature=1)
    with pytest.raises(InvalidRequest, match="salt beside it"):
        make_job(job, salt="t")
    with pytest.raises(InvalidRequest, match="this is no job: 'NoneType'"):
        make_job(None)  # type: ignore[arg-type]


def test_asyncio_programs_can_ask_and_give_up(queue: PrefillQueue, make_intake: MakeIntake) -> None:
    prefills = FakePrefills(seconds=0.2)
    make_intake("r1", prefills)

    async def both() -> list[int]:
        answers = await asyncio.gather(queue.aprefill([1, 2]), queue.aprefill([1, 3]))
        return [answer.first_token for answer in answers]

    assert asyncio.run(both()) == [3, 4]
    prefills.seconds = 60

    async def too_long() -> None:
        await asyncio.wait_for(queue.aprefill([1, 2], id="slow"), 0.3)

    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(too_long())
    with pytest.raises(RequestAborted):
        queue.prefill([1, 2], id="slow")


def test_who_is_interrupted_does_not_wait_for_a_server_that_hangs(
    server: NatsServer, queue: PrefillQueue
) -> None:
    assert queue.depth() == 0
    with server.stopped():
        began = time.monotonic()
        timer = threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGINT])
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            queue.prefill([1, 2])

        async def give_up() -> None:
            await asyncio.wait_for(queue.aprefill([1, 2]), 0.3)

        with pytest.raises(asyncio.TimeoutError):
            asyncio.run(give_up())
        assert time.monotonic() - began < 10
    timer.join()


def test_a_closed_queue_says_so_and_leaves_its_jobs_to_go_on(
    server: NatsServer, name: QueueName, make_intake: MakeIntake
) -> None:
    queue = PrefillQueue(name.model, namespace=name.namespace, server=server.url)
    for ask in (
        lambda: queue.submit([1]),
        queue.depth,
        queue.served,
        queue.others,
        lambda: queue.cancel("a"),
        lambda: queue.called,
    ):
        with pytest.raises(QueueError, match="not open"):
            ask()
    queue.open()
    with pytest.raises(QueueError, match="open already"):
        queue.open()
    future = queue.submit([1, 2], id="later")
    while queue.depth() == 0:
        pass
    queue.close()
    with pytest.raises(QueueError, match="it goes on"):
        future.result(5)
    with pytest.raises(QueueError, match="not open"):
        queue.depth()
    with pytest.raises(QueueError, match="make another PrefillQueue"):
        queue.open()
    prefills = FakePrefills()
    make_intake("r1", prefills)
    with PrefillQueue(name.model, namespace=name.namespace, server=server.url) as again:
        assert again.prefill([1, 2], id="later").first_token == 3
    assert len(prefills.asked) == 1


def test_a_job_that_somebody_took_away_is_told_as_lost(
    queue: PrefillQueue, name: QueueName, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_wait, "LOOK_SECONDS", 0.1)
    future = queue.submit(Job(id="a", token_ids=(1, 2)))
    while queue.depth() == 0:
        pass
    queue._call(queue._client._streams.jetstream.purge_stream(name.jobs_stream))
    with pytest.raises(QueueError, match=r"job a is lost.*send it again"):
        future.result(10)


def test_a_full_queue_says_so(queue: PrefillQueue, name: QueueName) -> None:
    stream = queue._client._streams.jetstream
    config = queue._call(stream.stream_info(name.jobs_stream)).config
    queue._call(stream.update_stream(config.evolve(max_msgs=1)))
    queue.submit([1, 2])
    while queue.depth() == 0:
        pass
    with pytest.raises(QueueError, match="takes no more jobs: maximum messages exceeded"):
        queue.prefill([1, 2])


def test_a_deadline_is_kept_and_the_jobs_id_named_while_the_server_is_away(
    server: NatsServer, queue: PrefillQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one that was sent, of one that was not, and of one whose sender waits for another sender's."""
    monkeypatch.setattr(queue_client, "SEND_SECONDS", 3.0)
    odd = "an id/that is *hashed*"
    sent = [queue.submit([1, 2], id=odd, deadline_seconds=seconds) for seconds in (1.5, 1.0)]
    while queue.depth() == 0:
        pass
    server.kill()
    try:
        began = time.monotonic()
        late = queue.submit([1, 3], id=f"{odd} 2", deadline_seconds=0.5)
        for future, why in (
            (sent[0], "what became of it is not known, as the NATS server is not reached"),
            (sent[1], "what became of it is not known, as the NATS server is not reached"),
            (late, "were over before the NATS server said that it took it"),
        ):
            with pytest.raises(RequestTimeout, match=rf"^job {re.escape(odd)}.*deadline_seconds=.*{why}"):
                future.result(20)
        assert time.monotonic() - began < 5
        with pytest.raises(QueueError, match=rf"what became of job {re.escape(odd)} 3: "):
            queue.prefill([1, 2], id=f"{odd} 3")
    finally:
        server.start()

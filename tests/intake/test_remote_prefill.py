from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from wavepp_worker.errors import InvalidRequest, QueueError, RequestAborted, RequestFailed
from wavepp_worker.intake import opening
from wavepp_worker.intake.names import QueueName
from wavepp_worker.intake.prefill_queue import PrefillQueue
from wavepp_worker.intake.remote_config import RemotePrefillConfig
from wavepp_worker.intake.remote_prefill import RemotePrefill
from wavepp_worker.model.sampling_params import SamplingParams
from wavepp_worker.runtime.protocol.requests import PrefillRequest

from tests.intake.conftest import MakeIntake
from tests.intake.test_intake import empty
from tests.support.fake_placement import Chosen
from tests.support.fake_prefills import FakePrefills
from tests.support.nats_servers import NatsServer

Work = Callable[[RemotePrefill], Awaitable[Any]]
REQUEST = PrefillRequest.of(
    "client's id",
    [1, 2],
    salt="s",
    sampling=SamplingParams(temperature=0.5, seed=3),
    handoff=True,
    banned=[7],
)


@pytest.fixture
def with_remote(server: NatsServer, name: QueueName) -> Callable[[Work], Any]:
    """Run something with a decode worker's view of the queue."""

    def run(work: Work) -> Any:
        async def opened() -> Any:
            config = RemotePrefillConfig(
                remote_prefill="nats", nats_server=server.url, max_local_prefill_length=10
            )
            remote = RemotePrefill(config, name)
            await remote.open()
            try:
                return await asyncio.wait_for(work(remote), 20)
            finally:
                await remote.close()

        return asyncio.run(opened())

    return run


def never() -> bool:
    return False


def test_a_prompt_is_sent_as_it_is_and_its_address_comes_before_its_answer(
    with_remote: Callable[[Work], Any], make_intake: MakeIntake, server: NatsServer, name: QueueName
) -> None:
    prefills = FakePrefills(seconds=0.5)
    make_intake("r1", prefills)

    async def work(remote: RemotePrefill) -> None:
        for _ in range(2):  # a client may use its id again
            job = await remote.send(REQUEST)
            address = await job.address(5, never)
            assert (address.host, address.port, job.attempt) == ("127.0.0.1", 4242, 1)
            assert prefills.running + prefills.waiting <= 1, "not done yet"
            await job._asking
            job.leave(done=True)

    with_remote(work)
    asked = prefills.asked[0]
    assert (asked.tokens, asked.salt, asked.banned) == (REQUEST.tokens, "s", (7,))
    assert (asked.sampling.temperature, asked.sampling.seed) == (0.5, 3)
    assert len(prefills.asked) == 2
    empty(server, name)


def test_a_prompt_goes_where_it_is_placed_until_that_has_it_no_more(
    server: NatsServer, name: QueueName, make_intake: MakeIntake
) -> None:
    prefills = [FakePrefills(seconds=0.2), FakePrefills(seconds=0.2)]
    for number, each in enumerate(prefills):
        make_intake(f"r{number}", each)
    config = RemotePrefillConfig(remote_prefill="nats", nats_server=server.url)

    async def work() -> None:
        for number in (1, 0):
            placement = Chosen(f"r{number}")
            remote = RemotePrefill(config, name, placement)
            await remote.open()
            jobs = [await remote.send(REQUEST) for _ in range(3)]
            assert [idle for _, _, idle in placement.asked] == [True, False, False]
            assert placement.asked[0][:2] == ([1, 2], "s")
            assert len(placement.held) == remote.addressed == 3
            assert [(await job._asking).replica for job in jobs] == [f"r{number}"] * 3
            await asyncio.sleep(0)
            assert not placement.held
            # One that is gone has it until another takes it, or nobody wants it.
            placement.replica = "gone"
            for prefill in prefills:
                prefill.seconds = 30.0
            left = await remote.send(REQUEST)
            assert len(placement.held) == 1
            left.leave(done=False)
            await asyncio.wait({left._asking})
            await asyncio.sleep(0)
            assert not placement.held
            taken = await remote.send(REQUEST)
            assert len(placement.held) == 1
            await taken.address(10, never)
            assert not placement.held
            taken.leave(done=False)
            for prefill in prefills:
                prefill.seconds = 0.2
            # It is not waited for again soon; nor is anybody where none is said.
            for placement.replica in ("gone", None):
                anybody = await remote.send(REQUEST)
                assert anybody._job.replica is None
                assert not placement.held
                assert (await anybody._asking).replica in ("r0", "r1")
            assert remote.addressed == 5
            await remote.close()

    asyncio.run(asyncio.wait_for(work(), 60))


def test_another_attempt_has_another_address(
    with_remote: Callable[[Work], Any], make_intake: MakeIntake
) -> None:
    prefills = FakePrefills()
    prefills.failures = 1
    make_intake("r1", prefills)

    async def work(remote: RemotePrefill) -> None:
        job = await remote.send(REQUEST)
        first = await job.address(5, never)
        second = await job.address(5, never)
        assert (job.attempt, first.room != second.room) == (2, True)
        job.leave(done=True)

    with_remote(work)


def test_nobody_has_begun_it_the_caller_left_and_it_was_given_up(
    with_remote: Callable[[Work], Any], make_intake: MakeIntake, queue: PrefillQueue
) -> None:
    async def impatient(remote: RemotePrefill) -> None:
        job = await remote.send(REQUEST)
        with pytest.raises(QueueError, match="--remote-prefill-patience"):
            await job.address(0.2, never)
        job.leave(done=False)
        job = await remote.send(REQUEST)
        with pytest.raises(RequestAborted):
            await job.address(5, lambda: True)
        job.leave(done=False)

    with_remote(impatient)
    prefills = FakePrefills()
    prefills.failures = 1000
    make_intake("r1", prefills, intake_attempts=1)

    async def failing(remote: RemotePrefill) -> None:
        job = await remote.send(REQUEST)
        await job.address(5, never)
        with pytest.raises(RequestFailed, match="given up"):
            await job.address(5, never)
        refused = await remote.send(PrefillRequest.of("r", [900], handoff=True))
        await refused.address(5, never)
        with pytest.raises(InvalidRequest, match="outside the vocabulary"):
            await refused.address(5, never)

    with_remote(failing)
    # What was left was not run.
    assert len(prefills.asked) == 1


def test_a_long_queue_and_a_server_that_is_gone_keep_prompts_here(
    with_remote: Callable[[Work], Any], server: NatsServer
) -> None:
    async def work(remote: RemotePrefill) -> None:
        assert remote.wanted(11)
        assert not remote.wanted(10)
        jobs = [await remote.send(REQUEST) for _ in range(2)]
        assert not remote.wanted(11), "a burst sees its own length"
        for job in jobs:
            job.leave(done=False)
        remote.limits = remote.limits.changed({"max_prefill_queue_size": 50})
        assert remote.wanted(11)
        server.kill()
        while remote.wanted(11):
            await asyncio.sleep(0.05)
        server.start()
        while not remote.wanted(11):
            await asyncio.sleep(0.05)

    with_remote(work)


def test_a_server_that_comes_later_is_used_then(
    tmp_path: Path, name: QueueName, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(opening, "AT_ONCE_SECONDS", 0.2)
    server = NatsServer(tmp_path)
    monkeypatch.setenv("NATS_SERVER", server.url)
    remote = RemotePrefill(RemotePrefillConfig(remote_prefill="nats", max_local_prefill_length=10), name)
    monkeypatch.delenv("NATS_SERVER")

    async def work() -> None:
        await remote.open()
        try:
            assert not remote.wanted(11)
            [said] = [each.getMessage() for each in caplog.records if "is not reached yet" in each.msg]
            assert "until then this worker prefills all by itself" in said
            server.start()
            end = time.monotonic() + 20
            while not remote.wanted(11):
                assert time.monotonic() < end
                await asyncio.sleep(0.02)
        finally:
            await remote.close()

    try:
        asyncio.run(work())
    finally:
        server.close()

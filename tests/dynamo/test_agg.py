from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from dynamo._core import Context
from dynamo.llm.exceptions import InvalidArgument
from prometheus_client import generate_latest
from wavepp_worker.dynamo.agg import AggWorker
from wavepp_worker.errors import InvalidRequest, JobTooLarge, QueueError, RequestFailed
from wavepp_worker.handoff.connection import deadline
from wavepp_worker.handoff.offer import BootstrapAddress, FirstToken
from wavepp_worker.model.sampled_token import SampledToken
from wavepp_worker.runtime.protocol.requests import PrefillRequest

from tests.support import fake_engines as fakes
from tests.support.dynamo_workers import (
    collect,
    prompt,
    reasons,
    run,
    started,
)

pytestmark = pytest.mark.usefixtures("fake_engines")


def test_kv_of_a_prompt_whose_client_left_before_decode_came_for_it_is_not_kept(text_model: Path) -> None:
    async def check() -> None:
        worker = await started("agg", text_model)
        worker._decode.engine.submit = lambda *_: None
        answer = worker.generate(prompt("agg"), Context("r"))
        asking = asyncio.ensure_future(anext(answer))
        async with deadline.timeout(10):
            while not any(room.first for room in fakes.FakeBootstrap.rooms.values()):
                await asyncio.sleep(0.01)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await answer.aclose()
        assert [room.abandoned for room in fakes.FakeBootstrap.rooms.values()] == [True]

    run(check())


def test_outcomes_are_counted(text_model: Path) -> None:
    async def check() -> None:
        worker = await started("agg", text_model)
        await collect(worker, prompt("agg"), Context("r"))
        with pytest.raises(InvalidArgument):
            await collect(worker, {"token_ids": []}, Context("r2"))
        text = "".join(generate_latest(registry).decode() for registry in worker.registries())
        assert 'wavepp_prefill_requests_total{outcome="finished"} 1.0' in text
        assert 'wavepp_decode_requests_total{outcome="length"} 1.0' in text

    run(check())


class Remote:
    """A queue of which each attempt is an address, or why there is none."""

    patience = 1.0

    def __init__(self, *attempts: int | Exception, wanted: bool = True) -> None:
        self.attempts, self.left, self.is_wanted = list(attempts), [], wanted
        self.attempt = self.returned = self.sent = 0
        self.uncached: list[int] = []

    def wanted(self, uncached: int) -> bool:
        self.uncached.append(uncached)
        return self.is_wanted

    async def send(self, request: PrefillRequest) -> Remote:
        assert request.handoff
        self.sent += 1
        return self

    async def address(self, seconds: float, is_stopped: object) -> BootstrapAddress:
        found = self.attempts.pop(0)
        if isinstance(found, Exception):
            raise found
        self.attempt += 1
        return BootstrapAddress(host="127.0.0.1", port=1, room=found, secret=fakes.KEY.for_room(found))

    def leave(self, *, done: bool) -> None:
        self.left.append(done)


def answer_room(room: int, failure: str | None = None) -> None:
    entry = fakes.FakeBootstrap.room(room)
    entry.failure = failure
    if failure is None:
        entry.first = FirstToken(first=SampledToken(4, -0.5, ((4, -0.5),)), reused_tokens=fakes.REUSED)
    entry.settled.set()


@pytest.mark.parametrize(
    ("attempts", "failures", "returned", "locally"),
    [
        ([1], {}, 0, 0),
        # Its prefill worker dies, and another one has it.
        ([1, 2], {1: "its worker died"}, 0, 0),
        # Nobody has begun it; or nobody again.
        ([QueueError("nobody")], {}, 1, 1),
        # The server takes no job of its length.
        ([JobTooLarge("job a has 20 bytes")], {}, 1, 1),
        ([1, RequestFailed("given up")], {1: "its worker died"}, 1, 1),
    ],
)
def test_a_prompt_goes_through_the_queue_and_comes_back_if_nobody_prefills_it(
    text_model: Path, attempts: list[int | Exception], failures: dict[int, str], returned: int, locally: int
) -> None:
    async def check() -> None:
        worker = await started("agg", text_model)
        worker._remote = remote = Remote(*attempts)
        for room in (each for each in attempts if isinstance(each, int)):
            answer_room(room, failures.get(room))
        chunks = await collect(worker, prompt("agg"), Context("r"))
        assert reasons(chunks) == ["length"]
        assert (remote.returned, remote.left, remote.uncached) == (returned, [not locally], [3])
        assert len(worker._prefill.engine.requests) == locally
        assert not worker._live

    run(check())


def test_a_prompt_whose_kv_does_not_fit_here_is_prefilled_here_at_once(text_model: Path) -> None:
    async def check() -> None:
        worker = await started("agg", text_model)
        worker._remote = remote = Remote(1, 2)
        answer_room(1, "it serves another model")
        fakes.FakeBootstrap.room(1).failure_kind = "HandoffMismatch"
        assert reasons(await collect(worker, prompt("agg"), Context("r"))) == ["length"]
        # The job is left, so that nobody computes it once more.
        assert (remote.returned, remote.left, remote.attempts) == (1, [False], [2])
        assert len(worker._prefill.engine.requests) == 1

    run(check())


def test_a_client_that_leaves_while_another_worker_prefills_leaves_the_job(text_model: Path) -> None:
    async def check() -> None:
        worker = await started("agg", text_model)
        worker._remote = remote = Remote(1)
        stream = worker.generate(prompt("agg"), Context("r"))
        waiting = asyncio.create_task(anext(stream))
        await asyncio.sleep(0.05)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await stream.aclose()
        assert (remote.left, remote.returned) == ([False], 0)

    run(check())


def test_what_a_prefill_worker_refuses_is_refused(text_model: Path) -> None:
    async def check() -> None:
        worker = await started("agg", text_model)
        worker._remote = remote = Remote(InvalidRequest("token id 900 is outside"))
        with pytest.raises(InvalidArgument, match="token id 900"):
            await collect(worker, prompt("agg"), Context("r"))
        assert (remote.returned, remote.left) == (0, [False])
        worker._remote = Remote(wanted=False)
        assert reasons(await collect(worker, prompt("agg"), Context("r"))) == ["length"]
        assert worker._remote.sent == 0

    run(check())


@pytest.mark.parametrize(("discovery", "followed"), [("etcd", True), ("file", False)])
def test_limits_are_also_a_key_of_etcd_where_discovery_is_by_etcd(
    discovery: str, followed: bool, text_model: Path
) -> None:
    flags = ["--model", str(text_model), "--remote-prefill", "nats", "--discovery-backend", discovery]
    worker, _ = run(AggWorker.from_args(flags))
    assert (worker._remote._etcd is not None) == followed

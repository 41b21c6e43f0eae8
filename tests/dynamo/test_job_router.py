"""Which worker a job addresses, by what a router says; with Dynamo's own router: tests/e2e/test_queue_graph.py."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from wavepp_worker.dynamo import job_router, own_runtime
from wavepp_worker.dynamo.job_router import JobRouter

PROMPT = list(range(64))


class Router:
    """Says one worker, with some blocks of 16."""

    def __init__(self, worker: int, blocks: int) -> None:
        self.best = (worker, 0, blocks)
        self.seconds = 0.0
        self.asked: list[tuple[str | None, bool, str | None]] = []
        self.freed: list[str] = []

    async def best_worker(
        self, tokens: list[int], *, request_id: str | None, update_indexer: bool, cache_namespace: str | None
    ) -> tuple[int, int, int]:
        assert tokens == PROMPT
        self.asked.append((request_id, update_indexer, cache_namespace))
        await asyncio.sleep(self.seconds)
        return self.best

    async def free(self, job_id: str) -> None:
        self.freed.append(job_id)


def make(router: Any, workers: list[int]) -> JobRouter:
    made = JobRouter(SimpleNamespace(options=None), "a.b.c", 16)  # type: ignore[arg-type]
    made._router = router
    made._workers = SimpleNamespace(instance_ids=lambda: workers)
    return made


def choose(router: JobRouter, *, idle: bool, salt: str = "s") -> str | None:
    async def work() -> str | None:
        chosen = await router.choose("job", PROMPT, salt, idle=idle)
        await asyncio.sleep(0.01)
        return chosen

    return asyncio.run(work())


def test_where_no_job_waits_the_routers_choice_is_taken() -> None:
    router = Router(0xABC, 0)
    assert choose(make(router, [0xABC]), idle=True) == "abc"
    assert router.asked == [("job", True, "s")]
    assert choose(make(router, [0xABC]), idle=True, salt="") == "abc"
    assert router.asked[1] == ("job", True, None)


def test_where_jobs_wait_a_replica_is_waited_for_that_has_half_of_the_prompt() -> None:
    less, half = Router(0xABC, 1), Router(0xABC, 2)
    assert choose(make(less, [0xABC]), idle=False) is None
    assert less.asked == [(None, False, "s")], "it counts as nobody's"
    assert choose(make(half, [0xABC]), idle=False) == "abc"
    assert half.asked == [(None, False, "s"), ("job", True, "s")]


def test_choices_are_made_one_after_the_other() -> None:
    router = Router(0xABC, 4)
    router.seconds = 0.05

    async def work() -> None:
        made = make(router, [0xABC])
        first = asyncio.create_task(made.choose("first", PROMPT, "", idle=True))
        second = asyncio.create_task(made.choose("second", PROMPT, "", idle=False))
        await asyncio.sleep(0.02)
        assert [job for job, *_ in router.asked] == ["first"]
        assert [await first, await second] == ["abc", "abc"]

    asyncio.run(work())


def test_without_workers_or_a_router_nobody_is_chosen() -> None:
    router = Router(1, 4)
    assert choose(make(router, []), idle=True) is None
    assert choose(make(None, [1]), idle=True) is None
    assert not router.asked


def test_a_router_that_fails_or_is_slow_costs_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_router, "CHOICE_SECONDS", 0.05)
    router = Router(1, 4)
    router.seconds = 1.0
    assert choose(make(router, [1]), idle=True) is None
    assert router.freed == ["job"]

    async def cancelled() -> None:
        task = asyncio.create_task(made.choose("left", PROMPT, "", idle=True))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0.01)

    made = make(router, [1])
    asyncio.run(cancelled())
    assert router.freed == ["job", "left"]


def test_a_job_that_is_over_counts_no_more() -> None:
    router = Router(1, 4)

    async def work() -> None:
        made = make(router, [1])
        made.over("job")
        await asyncio.sleep(0.01)

    asyncio.run(work())
    assert router.freed == ["job"]


def test_who_cannot_open_it_goes_on_without(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_runtime(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("no broker")

    monkeypatch.setattr(own_runtime, "DistributedRuntime", no_runtime)
    options = SimpleNamespace(discovery_backend="file", request_plane="tcp", event_plane="zmq")

    async def work() -> str | None:
        made = JobRouter(SimpleNamespace(options=options), "a.b.c", 16)  # type: ignore[arg-type]
        await made.open()
        return await made.choose("job", PROMPT, "", idle=True)

    assert asyncio.run(work()) is None
    assert "no router over a.b.c: no broker" in caplog.text

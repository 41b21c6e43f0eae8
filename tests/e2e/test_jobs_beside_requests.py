"""Prefill workers that take jobs from a queue beside what frontends route to them, as ``--intake nats`` has them."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from wavepp_worker.intake.messages import JobResult
from wavepp_worker.intake.prefill_queue import PrefillQueue

from tests.chaos.queue_jobs import queue_jobs
from tests.support.reference import Reference
from tests.support.served_graph import ServedGraph

pytestmark = pytest.mark.e2e

JOBS = 40


@pytest.fixture(scope="module")
def graph(start: Callable[..., ServedGraph], ascii_model: Path) -> ServedGraph:
    return start(
        "graphs:disagg_wavepp",
        f"--Common.model={ascii_model}",
        "--Common.dtype=float32",
        "--PrefillWorker.pp=2",
        "--PrefillWorker.intake=nats",
    )


def test_jobs_and_requests_are_answered_beside_each_other_by_the_same_workers(
    graph: ServedGraph, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in graph.running.state()["queue"].items():
        monkeypatch.setenv(name, value)
    draw = random.Random(1)
    prompts = [[draw.randrange(256) for _ in range(draw.randrange(20, 700))] for _ in range(2 * JOBS)]

    def ask(prompt: list[int]) -> str:
        return graph.complete(prompt, max_tokens=4)["choices"][0]["text"]

    with PrefillQueue(graph.running.model) as queue, ThreadPoolExecutor(4) as pool:
        answers = [queue.submit(prompt) for prompt in prompts[:JOBS]]
        texts = list(pool.map(ask, prompts[JOBS:]))
        results: list[JobResult] = [answer.result(60) for answer in answers]
        # What a job has computed a request reuses, and the reverse.
        reused = graph.complete([*prompts[0], 1], max_tokens=1)["usage"]["prompt_tokens_details"][
            "cached_tokens"
        ]
        again = [queue.prefill([*prompts[-1], number]) for number in range(4)]
    assert texts == [reference.text(prompt, 4) for prompt in prompts[JOBS:]]
    assert [result.first_token for result in results] == [
        reference.generate(prompt, 1)[0] for prompt in prompts[:JOBS]
    ]
    workers = {worker["about"]["instance"] for worker in graph.workers("PrefillWorker")}
    assert {result.replica for result in results} == workers, "both take jobs"
    whole = len(prompts[-1]) // 16 * 16
    assert max(result.reused_tokens for result in again) >= whole
    assert reused in (0, len(prompts[0]) // 16 * 16), "by which of both the router chose"
    assert queue_jobs(graph.running) == (JOBS + 4, 0)
    graph.audit()

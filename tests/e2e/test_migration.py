"""``--Frontend.migration_limit``: ranks of prefill workers killed under load fail no request."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.rank_pids import ranks_of
from tests.support.reference import Reference
from tests.support.served_graph import ServedGraph

pytestmark = [pytest.mark.e2e, pytest.mark.soak, pytest.mark.timeout(600)]

CLIENTS, KILLS, LENGTH, TOKENS = 8, 4, 600, 4


@pytest.fixture(scope="module")
def graph(start: Callable[..., ServedGraph], ascii_model: Path) -> ServedGraph:
    return start(
        "graphs:disagg_wavepp",
        f"--Common.model={ascii_model}",
        "--Common.dtype=float32",
        "--PrefillWorker.pp=2",
        "--Frontend.migration_limit=3",
    )


class Clients:
    """Ask until they are told to stop; every other one takes a stream.

    Attributes:
        pause: seconds between an answer and the next request.
    """

    def __init__(self, graph: ServedGraph) -> None:
        self._graph = graph
        self._stop = threading.Event()
        self.pause = 0.0
        self.answers: list[tuple[list[int], str]] = []
        self.failures: list[str] = []
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def _run(self, number: int) -> None:
        draw = random.Random(number)
        while not self._stop.is_set():
            prompt = [draw.randrange(256) for _ in range(LENGTH)]
            asked: dict[str, Any] = {"prompt": prompt, "max_tokens": TOKENS}
            try:
                self.answers.append((prompt, self._streamed(asked) if number % 2 else self._whole(asked)))
            except (AssertionError, httpx.HTTPError) as error:
                self.failures.append(f"{type(error).__name__}: {error}")
            self._stop.wait(self.pause)

    def _whole(self, asked: dict[str, Any]) -> str:
        answer = self._graph.post("/v1/completions", **asked)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["text"])

    def _streamed(self, asked: dict[str, Any]) -> str:
        body = {"model": self._graph.running.model, "temperature": 0, "stream": True, **asked}
        text = ""
        with self._graph.http.stream("POST", "/v1/completions", json=body) as answer:
            assert answer.status_code == 200, answer.read()
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line[6:])
                    assert "error" not in event, event
                    text += "".join(choice["text"] for choice in event["choices"])
        return text

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(120)
            assert not thread.is_alive(), "a request has no answer"


def test_killed_ranks_fail_no_request(graph: ServedGraph, reference: Reference) -> None:
    draw = random.Random(2026)

    def whole() -> bool:
        workers = graph.workers("PrefillWorker")
        return len(workers) == 2 and all(worker["ready"] for worker in workers)

    clients = Clients(graph)
    killed = 0
    try:
        for turn in range(KILLS):
            # On few cores ranks that start get next to nothing of them beside clients that never pause.
            clients.pause = 1.0
            graph.running.wait_for(whole, 90)
            clients.pause = 0.0
            time.sleep(draw.uniform(1, 3))
            victims = ranks_of(graph.workers("PrefillWorker")[turn % 2]["pid"])
            assert len(victims) == 2
            os.kill(victims[draw.randrange(2)], signal.SIGKILL)
            killed += 1
            time.sleep(2)
        clients.pause = 1.0
        graph.running.wait_for(whole, 90)
    finally:
        clients.stop()
    print(f"{killed} ranks killed, {len(clients.answers)} answers, {len(clients.failures)} failures")
    assert not clients.failures, clients.failures
    assert len(clients.answers) >= 10 * killed
    for prompt, text in clients.answers[:: max(1, len(clients.answers) // 20)]:
        assert text == reference.text(prompt, TOKENS)
    graph.audit()

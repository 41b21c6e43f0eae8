"""A replica under load is not taken for dead, and one whose rank hangs is: it is restarted, and answers again."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.e2e.conftest import served
from tests.support.rank_pids import ranks_of
from tests.support.served_graph import ServedGraph

pytestmark = pytest.mark.e2e

BOUND = 4.0
CANARY_SECONDS = 2
"""That a canary has in this test; a queue takes several times as long."""


@pytest.fixture(scope="module")
def graph(ascii_model: Path) -> Iterator[ServedGraph]:
    """One replica of two ranks, with waves so small that long prompts take long."""
    words = [
        f"--Common.model={ascii_model}",
        "--Common.dtype=float32",
        "--PrefillWorker.ServiceArgs.workers=1",
        "--PrefillWorker.max_num_batched_tokens=16",
        f"--PrefillWorker.wave_timeout={BOUND}",
    ]
    env = {"DYN_HEALTH_CHECK_REQUEST_TIMEOUT": str(CANARY_SECONDS)}
    with served("graphs:disagg_wavepp", *words, env=env) as graph:
        yield graph


def ask(graph: ServedGraph, seed: int, tokens: int, *, stream: bool = False) -> httpx.Response:
    draw = random.Random(seed)
    prompt = [draw.randrange(256) for _ in range(tokens)]
    return graph.post("/v1/completions", prompt=prompt, max_tokens=2, stream=stream)


def test_a_long_queue_is_no_sign_of_death_and_canaries_are_no_users(graph: ServedGraph) -> None:
    """Behind others' prompts a canary would get no answer in time, and kill a replica for being busy."""
    (worker,) = graph.workers("PrefillWorker")
    url = f"http://127.0.0.1:{worker['port']}/health"
    time.sleep(3)
    assert graph.metric(worker, "wavepp_rank_busy_seconds_total") > 0, (
        "no canary has come while nobody asked for anything"
    )
    for name in (
        "wavepp_waves_total",
        "wavepp_prompt_tokens_total",
        "wavepp_running_requests",
        "wavepp_queued_requests",
    ):
        assert graph.metric(worker, name) == 0
    done, statuses = threading.Event(), []

    def watch() -> None:
        while not done.wait(0.25):
            statuses.append(httpx.get(url, timeout=30).status_code)

    watcher = threading.Thread(target=watch)
    watcher.start()
    end = time.monotonic() + 3 * CANARY_SECONDS

    def ask_on(first: int) -> list[int]:
        """One after the other, as long as a few canaries take."""
        codes: list[int] = []
        while time.monotonic() < end:
            codes.append(ask(graph, first + 8 * len(codes), 3000).status_code)
        return codes

    with ThreadPoolExecutor(8) as pool:
        codes = [code for each in pool.map(ask_on, range(1000, 1008)) for code in each]
    done.set()
    watcher.join()
    assert set(codes) == {200}
    assert set(statuses) == {200}
    assert graph.metric(worker, "wavepp_prompt_tokens_total") == 3000 * len(codes)
    assert graph.workers("PrefillWorker")[0]["restarts"] == 0
    graph.audit()


def test_a_stopped_rank_costs_what_is_in_flight_and_a_restart(graph: ServedGraph) -> None:
    """Promise 18, S53, S54: it lives, so nothing but its silence tells. Every other answer is a stream."""
    (worker,) = graph.workers("PrefillWorker")
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(ask, graph, 100 + n, 3000, stream=n % 2 == 0) for n in range(4)]
        time.sleep(0.2)
        os.kill(ranks_of(worker["pid"])[1], signal.SIGSTOP)
        stopped = time.monotonic()
        answers = [future.result(60) for future in asked]
        took = time.monotonic() - stopped
    # A stream may have begun with 200 when it breaks; what was over before the rank was stopped is whole.
    broken = [answer for answer in answers if '"code": 503' in answer.text]
    assert broken, "nothing was in flight on the stopped rank"
    assert all("PrefillWorker:0 failed: the engine died: rank 1 has not" in answer.text for answer in broken)
    assert all(answer.status_code == 200 for answer in answers if answer not in broken)
    assert took < BOUND + 8

    def restarted() -> bool:
        (entry,) = graph.workers("PrefillWorker")
        return bool(entry["restarts"] == 1 and entry["ready"])

    graph.running.wait_for(restarted, 120)
    log = graph.running.log()
    assert "PrefillWorker:0 ended with exit code 70 (the engine died: rank 1 has not been heard of for" in log
    assert "its process is stopped by a signal (SIGCONT continues it))" in log
    graph.running.wait_for(lambda: ask(graph, 7, 20).status_code == 200, 60)
    graph.audit()

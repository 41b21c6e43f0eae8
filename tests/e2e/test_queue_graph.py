"""The graph with a queue: who prefills, that answers are right either way, and what dies meanwhile."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import httpx
import pytest
from wavepp_worker.intake.names import QueueName
from wavepp_worker.intake.prefill_queue import PrefillQueue

from tests.chaos.injectors import limits
from tests.chaos.queue_jobs import queue_jobs
from tests.support.reference import Reference
from tests.support.served_graph import ServedGraph

pytestmark = pytest.mark.e2e

LOCAL = 64
REUSED, PREFILLED = "wavepp_reused_tokens_total", "wavepp_prompt_tokens_total"


@pytest.fixture(scope="module")
def graph(start: Callable[..., ServedGraph], ascii_model: Path) -> ServedGraph:
    return start(
        "graphs:disagg_wavepp_queue",
        f"--Common.model={ascii_model}",
        "--Common.dtype=float32",
        "--PrefillWorker.pp=1",
        "--PrefillWorker.intake_silence=3",
        # KV for a decode worker that is killed is let go after that.
        "--PrefillWorker.handoff_timeout=10",
        f"--DecodeWorker.max_local_prefill_length={LOCAL}",
        "--DecodeWorker.max_prefill_queue_size=8",
    )


@pytest.fixture
def queue(graph: ServedGraph, monkeypatch: pytest.MonkeyPatch) -> PrefillQueue:
    for name, value in graph.running.state()["queue"].items():
        monkeypatch.setenv(name, value)
    return PrefillQueue(graph.running.model)


def decode(graph: ServedGraph) -> dict[str, Any]:
    [worker] = graph.workers("DecodeWorker")
    return worker


def sent(graph: ServedGraph) -> float:
    return graph.metric(decode(graph), "wavepp_remote_prefills_total")


def prompts(seed: int, count: int, length: int) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(256) for _ in range(length)] for _ in range(count)]


def test_long_prompts_go_through_the_queue_and_all_answers_are_right(
    graph: ServedGraph, reference: Reference
) -> None:
    def ask(prompt: list[int]) -> str:
        return graph.complete(prompt, max_tokens=6)["choices"][0]["text"]

    before = sent(graph)
    for prompt in prompts(1, 3, LOCAL):
        assert ask(prompt) == reference.text(prompt, 6)
    assert sent(graph) == before
    longer = [*prompts(2, 3, LOCAL + 1), *prompts(3, 3, 700)]
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(ask, longer)) == [reference.text(prompt, 6) for prompt in longer]
    assert sent(graph) == before + 6
    # Sampling is the decode worker's, but for the first token; an end that must not come yet is banned for that.
    answer = graph.complete(longer[0][1:], max_tokens=6, temperature=0.9, seed=5, min_tokens=6)
    assert answer["usage"]["completion_tokens"] == 6
    graph.audit()


def test_a_job_addresses_the_worker_that_dynamos_router_chooses(graph: ServedGraph) -> None:
    def of_workers(metric: str) -> list[float]:
        return [graph.metric(worker, metric) for worker in graph.workers("PrefillWorker")]

    def ask(prompt: list[int]) -> None:
        graph.complete(prompt, max_tokens=1)

    documents = prompts(11, 4, 400)
    before, reused, taken = sent(graph), of_workers(REUSED), of_workers(PREFILLED)
    addressed = graph.metric(decode(graph), "wavepp_remote_prefills_addressed_total")
    for turn in range(3):
        for salt in ("", "a tenant"):
            for document in documents:
                assert graph.complete([*document, turn], max_tokens=1, cache_salt=salt)
    [burst] = prompts(12, 1, 400)
    # Nobody has told of its blocks when the others are sent.
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(ask, [[*burst, number] for number in range(4)]))
    assert sent(graph) == before + 28
    # All but those that came when another job seemed to wait, of which nobody had half.
    assert graph.metric(decode(graph), "wavepp_remote_prefills_addressed_total") >= addressed + 20
    now = of_workers(REUSED)
    # Each document twice under each salt, and the burst's beginning three times, is found again by whom it goes to.
    assert 14 * 400 <= sum(now) - sum(reused) <= (2 * 2 * 4 + 3) * 400
    assert min(each - was for each, was in zip(of_workers(PREFILLED), taken, strict=True)) > 0, (
        "both have some"
    )
    graph.audit()


def test_the_limits_are_changed_while_it_runs(graph: ServedGraph) -> None:
    assert graph.control(decode(graph), "remote_prefill")["max_local_prefill_length"] == LOCAL
    told = graph.control(decode(graph), "remote_prefill", max_local_prefill_length=5000)
    assert (told["status"], told["max_local_prefill_length"], told["max_prefill_queue_size"]) == (
        "ok",
        5000,
        8,
    )
    before = sent(graph)
    [prompt] = prompts(4, 1, 300)
    graph.complete(prompt, max_tokens=1)
    assert sent(graph) == before
    wrong = graph.control(decode(graph), "remote_prefill", max_local=3)
    assert (wrong["status"], "max_local_prefill_length" in wrong["message"]) == ("error", True)
    graph.control(decode(graph), "remote_prefill", max_local_prefill_length=LOCAL)
    # What is here already does not count.
    graph.complete([*prompt, 1, 2, 3], max_tokens=1)
    assert sent(graph) == before


def test_killed_prefill_workers_and_a_killed_server_fail_no_request(
    graph: ServedGraph, reference: Reference, queue: PrefillQueue
) -> None:
    asked = prompts(5, 60, 400)
    before = sent(graph)
    victims = [graph.workers("PrefillWorker")[0], *graph.workers("NatsServer")]

    def kill() -> None:
        for victim in victims:
            time.sleep(0.5)
            os.kill(victim["pid"], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with ThreadPoolExecutor(6) as pool:
        texts = list(
            pool.map(lambda prompt: graph.complete(prompt, max_tokens=4)["choices"][0]["text"], asked)
        )
    killer.join()
    # How many depends on how long the server was away: meanwhile the decode worker prefills by itself.
    assert sent(graph) > before
    for prompt, text in list(zip(asked, texts, strict=True))[::10]:
        assert text == reference.text(prompt, 4)

    def back() -> bool:
        return all(entry["ready"] for entry in graph.running.state()["processes"])

    noted = (graph.running.run_dir / "deaths.json").read_text()
    assert "PrefillWorker:0" in noted
    assert "NatsServer" not in noted, "no request fails of it"
    graph.running.wait_for(back, 90)
    with queue:
        answers = [queue.submit(prompt) for prompt in asked[:10]]
        for prompt, answer in zip(asked, answers, strict=False):
            assert answer.result(30).first_token == int(reference.next_logprobs(prompt).argmax())
        name = QueueName("dynamo", graph.running.model)
        streams = queue._client._streams
        assert streams.name == name
        graph.running.wait_for(lambda: queue._call(streams.jobs()) == 0)
        assert queue._call(streams.dead_jobs()) == 0
    graph.audit()


def answered_within(graph: ServedGraph, seconds: float) -> None:
    """Wait until the graph answers again."""
    graph.running.wait_for(
        lambda: graph.post("/v1/completions", prompt=[1, 2, 3], max_tokens=2).status_code == 200, seconds
    )


def sentence(answer: httpx.Response) -> str:
    assert answer.status_code in (500, 503), answer.text
    return answer.json()["message"]


def some_were_dropped(graph: ServedGraph, reference: Reference, pid: int, seed: int) -> bool:
    """Ask a decode worker without descriptors until it leaves, and be answered; whether it dropped one."""
    asked = [*prompts(seed, 3, 20), *prompts(seed + 1, 1, 400)]
    answered_within(graph, 20)
    before = len(graph.running.log())
    with ThreadPoolExecutor(4) as pool:
        # No longer than needed: a worker for which it is no moment has to be started anew.
        with limits.few_descriptors(pid, 0):
            asking = [
                pool.submit(graph.post, "/v1/completions", prompt=prompt, max_tokens=3) for prompt in asked
            ]
            with contextlib.suppress(AssertionError):
                # It stays if a connection ended meanwhile whose descriptor does for all four, one after the other.
                graph.running.wait_for(lambda: "leaves discovery" in graph.running.log()[before:], 5)
        answers = [each.result() for each in asking]
    for prompt, answer in zip(asked, answers, strict=True):
        if answer.status_code == 200:
            # Asked again by our proxy when the worker was back.
            assert answer.json()["choices"][0]["text"] == reference.text(prompt, 3)
        else:
            assert sentence(answer)
    log = graph.running.log()[before:]
    return "Failed to create response stream: Too many open files" in log and "leaves discovery" in log


def test_no_request_waits_for_a_decode_worker_that_had_no_descriptor_for_its_answer(
    graph: ServedGraph, reference: Reference
) -> None:
    def was_a_moment(seed: int) -> bool:
        pid = decode(graph)["pid"]
        dropped = some_were_dropped(graph, reference, pid, seed)
        answered_within(graph, 90)
        return dropped and decode(graph)["pid"] == pid

    answered_within(graph, 20)
    # It may look at its descriptors, and leave, before the first request reaches it: then none was dropped. And
    # beside much other work a moment may become long enough for it to be started anew.
    assert any(was_a_moment(seed) for seed in (6, 16, 26, 36, 46))
    [prompt] = prompts(8, 1, 400)
    assert graph.complete(prompt, max_tokens=3)["choices"][0]["text"] == reference.text(prompt, 3)
    graph.audit()


def test_a_killed_decode_worker_leaves_no_request_without_an_answer_and_no_job_in_the_queue(
    graph: ServedGraph, reference: Reference
) -> None:
    asked, some = prompts(9, 24, 500), Barrier(2)

    def ask(number: int) -> httpx.Response:
        answer = graph.post("/v1/completions", prompt=asked[number], max_tokens=4)
        if number == 2:
            some.wait(60)
        return answer

    def kill() -> None:
        # Seven others are on their way.
        some.wait(60)
        os.kill(decode(graph)["pid"], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, range(len(asked))))
    killer.join()
    failed = 0
    for prompt, answer in zip(asked, answers, strict=True):
        if answer.status_code == 200:
            assert answer.json()["choices"][0]["text"] == reference.text(prompt, 4)
        else:
            failed += 1
            assert sentence(answer)
    assert failed > 0
    answered_within(graph, 90)
    came, left = queue_jobs(graph.running) or (0, -1)
    assert (came > 0, left) == (True, 0)
    graph.audit()

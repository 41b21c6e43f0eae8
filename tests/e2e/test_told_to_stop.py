"""Who is told to stop ends its answers first; those that take too long are told why they fail."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Barrier

import pytest

from tests.support.served_graph import ServedGraph

pytestmark = pytest.mark.e2e

ANSWERS = 4
TOKENS = 1500
"""These take some seconds; the grace is one here."""
BEGUN_SECONDS = 120
SHORT_SECONDS = 2


@pytest.fixture(scope="module")
def graph(one_of_each: ServedGraph) -> ServedGraph:
    """Ended by the last test here, and so by the last file that uses it."""
    return one_of_each


@contextmanager
def answers_on_their_way(graph: ServedGraph, tokens: int) -> Iterator[list[Future[str]]]:
    """Streams that have all begun; the result of each is the whole of its text."""
    begun = Barrier(ANSWERS + 1)

    def ask(first: int) -> str:
        body = {"model": graph.running.model, "prompt": [first, 2, 3], "max_tokens": tokens, "stream": True}
        with graph.http.stream("POST", "/v1/completions", json={"ignore_eos": True, **body}) as answer:
            lines = answer.iter_lines()
            text = [next(lines)]
            begun.wait(BEGUN_SECONDS)
            return "\n".join([*text, *lines])

    with ThreadPoolExecutor(ANSWERS) as pool:
        answers = [pool.submit(ask, 65 + number) for number in range(ANSWERS)]
        begun.wait(BEGUN_SECONDS)
        assert not any(answer.done() for answer in answers)
        yield answers


def whole(answers: list[Future[str]]) -> list[bool]:
    return ['"finish_reason":"length"' in answer.result() for answer in answers]


def test_a_decode_worker_that_is_told_to_stop_ends_its_answers(graph: ServedGraph) -> None:
    (worker,) = graph.workers("DecodeWorker")
    before = len(graph.running.log())
    with answers_on_their_way(graph, TOKENS) as answers:
        os.kill(worker["pid"], signal.SIGTERM)
        graph.running.wait_for(lambda: not graph.workers("DecodeWorker")[0]["ready"])
        assert whole(answers) == [True] * ANSWERS
    graph.running.wait_for(lambda: "DecodeWorker:0 ended with" in graph.running.log()[before:])
    assert "DecodeWorker:0 ended with exit code 0, " in graph.running.log()[before:]
    graph.running.wait_for(
        lambda: graph.post("/v1/completions", prompt=[1, 2], max_tokens=2).status_code == 200, 120
    )
    graph.audit()


def test_what_takes_too_long_is_told_so(start: Callable[..., ServedGraph], ascii_model: Path) -> None:
    graph = start(
        "graphs:agg_wavepp",
        f"--Common.model={ascii_model}",
        "--Common.dtype=float32",
        f"--stop-timeout={SHORT_SECONDS}",
    )
    (worker,) = graph.workers("Worker")
    with answers_on_their_way(graph, 7000) as answers:
        os.kill(worker["pid"], signal.SIGTERM)
        # On a slow machine those that began first have been computed by now, and only wait for their reader.
        told = [answer for answer, ended in zip(answers, whole(answers), strict=True) if not ended]
        assert told
        assert all('"error"' in answer.result() for answer in told)
    assert f"was told to stop, and its requests had {SHORT_SECONDS} s to end" in graph.running.log()


def test_a_frontend_that_is_told_to_stop_ends_its_answers_and_takes_no_more(graph: ServedGraph) -> None:
    (frontend,) = graph.workers("Frontend")
    before = len(graph.running.log())
    with answers_on_their_way(graph, TOKENS) as answers:
        os.kill(frontend["pid"], signal.SIGTERM)
        graph.running.wait_for(lambda: re.search(r"waiting for \d+ answer", graph.running.log()[before:]))
        refused = graph.post("/v1/completions", prompt=[1, 2], max_tokens=2)
        assert refused.status_code == 503
        assert "told to stop and takes no more requests" in refused.text
        for path in ("/health", "/live", "/v1/models"):
            assert graph.http.get(path).status_code == 503
        assert whole(answers) == [True] * ANSWERS
    graph.running.wait_for(lambda: "Frontend:0 ended with exit code 0, " in graph.running.log()[before:], 60)
    graph.running.wait_for(lambda: graph.workers("Frontend")[0]["ready"], 60)
    graph.running.wait_for(
        lambda: graph.post("/v1/completions", prompt=[1, 2], max_tokens=2).status_code == 200, 60
    )


def test_after_ctrl_c_answers_end_before_everything_else(graph: ServedGraph) -> None:
    with answers_on_their_way(graph, TOKENS) as answers:
        graph.running.process.send_signal(signal.SIGINT)
        assert whole(answers) == [True] * ANSWERS
    assert graph.running.wait_exit() == 0
    assert " ERROR " not in graph.running.log().partition("SIGINT: stopping")[2]

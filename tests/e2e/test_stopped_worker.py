"""A worker that discovery has forgotten is found again; one that was told to stop does not mind."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest

from tests.support.served_graph import ServedGraph

pytestmark = pytest.mark.e2e

STOPPED_SECONDS = 16.0
"""Longer than the ten seconds for which an entry in discovery lives, and the time until others look."""
FORGOTTEN_SECONDS = 20.0
"""Less than until the launcher takes it that the frontend is to blame."""
SEEN_SECONDS = 3.0
"""Within which a worker that is new has seen its own entry."""


@pytest.fixture(scope="module")
def graph(one_of_each: ServedGraph) -> ServedGraph:
    return one_of_each


def stop_for_long(victim: dict[str, Any]) -> None:
    os.kill(victim["pid"], signal.SIGSTOP)
    try:
        time.sleep(STOPPED_SECONDS)
    finally:
        os.kill(victim["pid"], signal.SIGCONT)


def served_within(graph: ServedGraph, seconds: float) -> None:
    def served() -> bool:
        return graph.post("/v1/completions", prompt=[1, 2, 3], max_tokens=2).status_code == 200

    graph.running.wait_for(served, seconds)
    graph.audit()


def test_a_worker_that_was_stopped_for_long_serves_again(graph: ServedGraph) -> None:
    assert graph.complete([1, 2, 3], max_tokens=2)
    (victim,) = graph.workers("PrefillWorker")
    stop_for_long(victim)
    served_within(graph, 60)


def test_a_worker_that_discovery_forgot_while_it_ran_serves_again(graph: ServedGraph) -> None:
    """As one that could not open files for ten seconds; nothing in its own clock tells it."""
    assert graph.complete([1, 2, 3], max_tokens=2)
    (victim,) = graph.workers("PrefillWorker")
    time.sleep(SEEN_SECONDS)
    for entry in (graph.running.run_dir / "store").rglob("*prefill*generate*"):
        entry.unlink()
    graph.running.wait_for(
        lambda: graph.workers("PrefillWorker")[0]["pid"] != victim["pid"], FORGOTTEN_SECONDS
    )
    assert "discovery has forgotten this worker" in graph.running.log()
    served_within(graph, 60)


@pytest.mark.soak
def test_a_worker_that_was_told_to_stop_does_not_mind_that_discovery_has_it_no_more(
    graph: ServedGraph,
) -> None:
    (victim,) = graph.workers("PrefillWorker")
    before = len(graph.running.log())
    os.kill(victim["pid"], signal.SIGTERM)
    graph.running.wait_for(lambda: "PrefillWorker:0 ended with" in graph.running.log()[before:])
    assert "PrefillWorker:0 ended with exit code 0, " in graph.running.log()[before:]
    served_within(graph, 60)

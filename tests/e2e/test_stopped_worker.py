"""A worker that did not run for longer than discovery keeps its entry is found again."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.served_graph import ServedGraph

pytestmark = pytest.mark.e2e

STOPPED_SECONDS = 16.0
"""Longer than the ten seconds for which an entry in discovery lives, and the time until others look."""


@pytest.fixture(scope="module")
def graph(start: Callable[..., ServedGraph], ascii_model: Path) -> ServedGraph:
    return start(
        "graphs:disagg_wavepp",
        f"--Common.model={ascii_model}",
        "--Common.dtype=float32",
        "--PrefillWorker.pp=1",
        "--PrefillWorker.ServiceArgs.workers=1",
    )


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

"""A worker of a whole graph that is paused and resumed again and again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.processes import descriptors
from tests.support.served_graph import ServedGraph

pytestmark = pytest.mark.e2e

TIMES = 6
SLACK = 3
"""Threads and descriptors that come and go by themselves."""


def held(pid: int) -> dict[str, int]:
    links = descriptors(pid)
    return {
        "threads": len(list(Path(f"/proc/{pid}/task").iterdir())),
        "descriptors": len(links),
        "inotify": sum("inotify" in link for link in links),
    }


def test_pauses_leave_nothing(agg: ServedGraph) -> None:
    (worker,) = agg.workers("Worker")

    def pause_and_resume() -> None:
        assert agg.control(worker, "pause", timeout_s=0)["status"] == "ok"
        assert agg.control(worker, "resume")["status"] == "ok"

    pause_and_resume()
    before, said = held(worker["pid"]), len(agg.running.log())
    for _ in range(TIMES):
        pause_and_resume()
    after = held(worker["pid"])
    assert all(after[what] - before[what] <= SLACK for what in before), (before, after)
    assert after["inotify"] == before["inotify"]
    assert "watch failed" not in agg.running.log()[said:]

"""When each service of a run has to have ended."""

from __future__ import annotations

from typing import Literal

import pytest
from wavepp_worker.liveness.stop_times import GRACE_VARIABLE, StopTimes
from wavepp_worker.serve.process import Process
from wavepp_worker.serve.stop_ends import stop_ends

Kind = Literal["frontend", "worker", "server"]


def process(service: str, kind: Kind, replica: int = 0, **env: str) -> Process:
    return Process(service, replica, kind, ("true",), env, 1, "http://127.0.0.1:1")


def test_each_kind_of_worker_has_its_grace_beside_what_all_have() -> None:
    processes = [
        process("Frontend", "frontend"),
        process("Decode", "worker"),
        process("Prefill", "worker"),
        process("Prefill", "worker", 1),
        process("Queue", "server"),
    ]
    ends = stop_ends(processes, {}, StopTimes(25, 5))
    assert ends == {"Frontend": 27.5, "Decode": 35.0, "Prefill": 42.5, "Queue": 45.0}
    ends = stop_ends(processes, {GRACE_VARIABLE: "0"}, StopTimes(25, 60))
    assert [*ends.values()] == [62.5, 65.0, 67.5, 70.0], "who may take longest counts"


def test_the_longest_grace_of_a_service_counts_which_its_own_variables_may_say() -> None:
    own = {GRACE_VARIABLE: "8"}
    processes = [process("A", "worker"), process("A", "worker", 1, **own), process("B", "worker")]
    assert stop_ends(processes, {GRACE_VARIABLE: "1"}, StopTimes(0, 0)) == pytest.approx({"A": 13, "B": 19})

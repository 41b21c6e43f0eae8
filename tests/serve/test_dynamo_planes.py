"""The launcher with Dynamo's own frontend and sample engine: planes, broker, loopback, draining."""

from __future__ import annotations

import concurrent.futures
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tests.support.graph_process import RunningGraph, Starter, start_graph

_GRAPH = """
from wavepp_worker.serve import Graph, Service

ENGINE = "dynamo.common.backend.sample_main"
MODEL = {{"model_name": {model!r}}}
sample = Graph("sample", (
    Service("Frontend", "dynamo.frontend", {{"router_mode": "kv"}}, kind="frontend"),
    Service("Decode", ENGINE, {{"component": "backend", "disaggregation_mode": "decode", **MODEL}}),
    Service(
        "Prefill", ENGINE, {{"component": "prefill", "disaggregation_mode": "prefill", **MODEL}}, replicas=2
    ),
))
"""
# The sample engine cannot tell that it is idle, so its drain always takes as long as it may.
_NO_DRAIN = "--Prefill.ServiceArgs.envs.DYN_PREFILL_DRAIN_TIMEOUT_S=0"


@pytest.fixture
def start_sample(tmp_path: Path, tiny_llama: Path) -> Starter:
    (tmp_path / "sample.py").write_text(_GRAPH.format(model=str(tiny_llama)))
    return lambda *words: start_graph("sample.py", _NO_DRAIN, *words, cwd=tmp_path)


@pytest.fixture
def sample(start_sample: Starter) -> Iterator[RunningGraph]:
    with start_sample("--Decode.delay=0.02", "--Prefill.delay=0.02") as graph:
        graph.wait_ready()
        yield graph


def complete(graph: RunningGraph, tokens: int) -> httpx.Response:
    body = {"model": graph.model, "prompt": "hello", "max_tokens": tokens}
    return httpx.post(f"{graph.base_url}/v1/completions", json=body, timeout=60, trust_env=False)


def listening(pids: list[int]) -> set[str]:
    """Addresses that the processes listen on, as far as they live."""
    inodes = set()
    for pid in pids:
        with suppress(FileNotFoundError):
            for link in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(FileNotFoundError):
                    target = os.readlink(link)
                    if target.startswith("socket:["):
                        inodes.add(target[len("socket:[") : -1])
    found = set()
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                packed = bytes.fromhex(fields[1].partition(":")[0])
                words = (packed[start : start + 4][::-1] for start in range(0, len(packed), 4))
                found.add(socket.inet_ntop(family, b"".join(words)))
    return found


def test_answers_at_once_and_listens_on_loopback_only(sample: RunningGraph) -> None:
    for _ in range(4):
        answer = complete(sample, 3)
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["completion_tokens"] == 3
    found = listening([sample.process.pid, *sample.pids()])
    assert "127.0.0.1" in found
    assert found <= {"127.0.0.1", "::1"}
    assert sample.stop() == 0


def test_interrupt_lets_a_running_answer_finish(sample: RunningGraph) -> None:
    with concurrent.futures.ThreadPoolExecutor() as pool:
        answer = pool.submit(complete, sample, 100)
        time.sleep(0.5)
        assert not answer.done()
        sample.process.send_signal(signal.SIGINT)
        result = answer.result(timeout=30)
    assert result.status_code == 200, result.text
    assert result.json()["usage"]["completion_tokens"] == 100
    assert sample.wait_exit() == 0


def test_killed_replica_comes_back_and_requests_find_the_rest(sample: RunningGraph) -> None:
    os.kill(sample.processes("Prefill")[0]["pid"], signal.SIGKILL)
    sample.wait_for(lambda: "Prefill:0 is up again" in sample.log())
    # Its old entry stays in the file discovery for up to ten seconds.
    sample.wait_for(lambda: all(complete(sample, 2).status_code == 200 for _ in range(4)), 30)
    assert sample.stop() == 0


def test_wider_host_is_served_when_asked(start_sample: Starter) -> None:
    with start_sample("--host", "0.0.0.0") as graph:
        graph.wait_ready()
        assert graph.base_url.startswith("http://127.0.0.1:")
        graph.wait_for(lambda: "0.0.0.0" in listening([graph.processes("Frontend")[0]["pid"]]), 10)
        assert listening([entry["pid"] for entry in graph.processes("Prefill")]) <= {"127.0.0.1", "::1"}
        assert complete(graph, 2).status_code == 200
        assert graph.stop() == 0

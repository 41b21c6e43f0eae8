from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.support.graph_process import REPOSITORY, RunningGraph, Starter, start_graph

_PROGRAMS = Path(__file__).with_name("programs")

_GRAPH = """
from wavepp_worker.serve import Graph, Service

dummies = Graph("dummies", (
    Service("Front", "dummy_service", {"role": "front", "workers_known": 3}, common=(), kind="frontend"),
    Service("Decode", "dummy_service", {"role": "decode"}, common=(), scaled_as="decode"),
    Service("Prefill", "dummy_service", {"role": "prefill"}, common=(), scaled_as="prefill", replicas=2),
))
"""


@pytest.fixture
def start_dummies(tmp_path: Path) -> Starter:
    """Starts a frontend, a decode worker and two prefill workers that only pretend."""
    (tmp_path / "dummies.py").write_text(_GRAPH)
    path = os.pathsep.join(filter(None, (str(_PROGRAMS), os.environ.get("PYTHONPATH"))))

    def start(
        *words: str, to: Path | None = None, env: Mapping[str, str] | None = None
    ) -> AbstractContextManager[RunningGraph]:
        return start_graph("dummies.py", *words, env={"PYTHONPATH": path, **(env or {})}, cwd=tmp_path, to=to)

    return start


@pytest.fixture
def etcd(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """At ``ETCD_ENDPOINTS`` somebody takes connections."""
    with socket.create_server(("127.0.0.1", 0)) as there:
        monkeypatch.setenv("ETCD_ENDPOINTS", f"http://127.0.0.1:{there.getsockname()[1]}")
        yield


@pytest.fixture
def in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs are found from here, and no setting of Dynamo comes from outside."""
    monkeypatch.chdir(REPOSITORY)
    for name in list(os.environ):
        if name.startswith("DYN_"):
            monkeypatch.delenv(name)

"""The launcher with Dynamo's own coordinator, over a real etcd, and services that only pretend."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support import etcd_server
from tests.support.etcd_server import EtcdServer
from tests.support.graph_process import RunningGraph, Starter
from tests.support.planner_process import PlannerProcess

pytestmark = pytest.mark.skipif(
    etcd_server.BINARY is None,
    reason="there is no etcd on this machine; install one (apt install etcd-server)",
)


def replicas(graph: RunningGraph, service: str = "Prefill") -> list[int]:
    return [each["replica"] for each in graph.processes(service)]


def restarts(graph: RunningGraph) -> dict[tuple[str, int], int]:
    return {(each["service"], each["replica"]): each["restarts"] for each in graph.state()["processes"]}


def pid_of_client(graph: RunningGraph) -> int:
    """Of the process that reads decisions."""
    (found,) = [
        pid
        for pid in graph.pids()
        if b"wavepp_worker.dynamo.planner_client" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    ]
    return found


def test_replicas_follow_the_planner_whoever_of_them_is_away(start_dummies: Starter, tmp_path: Path) -> None:
    etcd = EtcdServer(tmp_path)
    variables = {"ETCD_ENDPOINTS": etcd.url}
    order = tmp_path / "order"
    sick = tmp_path / "sick"
    (tmp_path / "sick-3").touch()
    words = [
        "--dynamo-planner",
        "--Prefill.ServiceArgs.workers=1",
        "--Prefill.ServiceArgs.max_workers=4",
        f"--Prefill.stop_log={order}",
        f"--Prefill.sick_if={sick}-{{replica}}",
        "--start-timeout=5",
    ]
    try:
        etcd.start()
        with start_dummies(*words, env=variables) as graph:
            graph.wait_ready()
            # A busy machine may take longer for the first start than it is given.
            before = restarts(graph)
            with PlannerProcess("dynamo", variables) as planner:
                planner.wait_done(planner.decide(2, 1))
                assert replicas(graph) == [0, 1]
                ports = [each["port"] for each in graph.processes("Prefill")]
                assert all(each["ready"] for each in graph.processes("Prefill"))
                planner.wait_done(planner.decide(1, None))
                assert replicas(graph) == [0]
                assert order.read_text().split() == ["prefill"]
                assert "Prefill:1 is gone" in graph.log()
            # Another planner goes on where this one stopped, and so does whoever reads decisions.
            os.kill(pid_of_client(graph), signal.SIGKILL)
            etcd.kill()
            graph.wait_for(lambda: "tried again until it is" in graph.log())
            etcd.start()
            with PlannerProcess("dynamo", variables) as planner:
                # That of Dynamo 1.4 counts from 0 again, and so takes this for carried out at once.
                number = planner.decide(9, 0)
                graph.wait_for(lambda: len(graph.state()["planner"]["shortfall"]) == 3)
                assert replicas(graph) == [0, 1, 2]
                assert [each["port"] for each in graph.processes("Prefill")][:2] == ports
                assert replicas(graph, "Decode") == [0]
                state = graph.state()["planner"]
                assert (state["decision"], state["workers"]) == (number, {"Prefill": 9, "Decode": 0})
                shortfall = "\n".join(state["shortfall"])
                assert "9 of Prefill are asked for, and Prefill.ServiceArgs.max_workers is 4" in shortfall
                assert "0 of Decode are asked for, and Decode.ServiceArgs.min_workers is 1" in shortfall
                assert "Prefill:3 is given up: is not ready after 5 s (--start-timeout)" in shortfall
                assert shortfall.splitlines()[-1] in graph.log()
                planner.wait_done(number)
                planner.decide(1, 1)
                graph.wait_for(lambda: replicas(graph) == [0])
                graph.wait_for(lambda: graph.state()["planner"]["shortfall"] == [])
            assert restarts(graph) == before, graph.log()
            assert graph.stop() == 0
    finally:
        etcd.close()

"""What of a graph follows Dynamo's planner, and what is said of the rest."""

from __future__ import annotations

from dataclasses import replace

import pytest
from wavepp_worker.errors import ConfigError
from wavepp_worker.serve import DECODE_WORKER, PREFILL_WORKER, WORKER, Graph
from wavepp_worker.serve.graph import resolve
from wavepp_worker.serve.launch_plan import LaunchPlan, Options, make_launch_plan
from wavepp_worker.serve.planned import planned_services

pytestmark = pytest.mark.usefixtures("in_the_repository", "etcd")


def plan(
    config: dict[str, object], graph: str = "graphs:disagg_wavepp", *, planner: bool = True
) -> LaunchPlan:
    return make_launch_plan(resolve(graph), config, Options(dynamo_planner=planner))


def launcher(**arguments: object) -> dict[str, object]:
    return {"PrefillWorker": {"ServiceArgs": {"workers": 1, **arguments}}}


def words(made: LaunchPlan, service: str) -> list[tuple[str, ...]]:
    return [process.argv for process in made.processes if process.service == service]


def test_each_role_is_one_service() -> None:
    graph = resolve("graphs:disagg_wavepp")
    assert planned_services(graph, graph.services) == {"DecodeWorker": "decode", "PrefillWorker": "prefill"}
    agg = resolve("graphs:agg_wavepp")
    assert planned_services(agg, agg.services) == {"Worker": "decode"}
    both = Graph("both", (DECODE_WORKER, WORKER))
    with pytest.raises(
        ConfigError, match=r"^--dynamo-planner: .* one number for decode, and DecodeWorker and Worker"
    ):
        planned_services(both, both.services)
    none = Graph("none", (replace(PREFILL_WORKER, scaled_as=None),))
    with pytest.raises(
        ConfigError, match=r"^--dynamo-planner: nothing that is started of graph none follows"
    ):
        planned_services(none, none.services)


def test_bounds() -> None:
    made = plan(launcher(max_workers=3))
    (note,) = [note for note in made.notes if "planner decides" in note]
    assert "PrefillWorker (1 to 3)" in note
    assert "DecodeWorker (1 to 8)" in note
    assert made.config["PrefillWorker"]["ServiceArgs"] == {"workers": 1, "min_workers": 1, "max_workers": 3}
    assert made.later_labels()[-3:] == ["PrefillWorker:1", "PrefillWorker:2", "planner"]
    made.held.close()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"min_workers": 2}, "min_workers: 2 does not go with the 1 that are started"),
        ({"workers": 3, "max_workers": 2}, "max_workers: 2 does not go with the 3"),
        ({"min_workers": 0}, "min_workers: should be at least 1"),
        ({"envs": {"DYN_SYSTEM_PORT": "31999"}}, r"DYN_SYSTEM_PORT: 31999 is the port of several processes"),
    ],
)
def test_what_cannot_be_followed_is_refused(arguments: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigError, match=rf"^PrefillWorker\.ServiceArgs\.(envs\.)?{why}"):
        plan(launcher(**arguments))


def test_bounds_without_a_planner_are_told() -> None:
    made = plan(launcher(max_workers=3), planner=False)
    assert (
        "PrefillWorker.ServiceArgs.max_workers counts with --dynamo-planner alone, which is not given"
        in made.notes
    )
    assert made.later_labels() == []
    made.held.close()


def test_bounds_of_what_no_planner_counts_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^Frontend\.ServiceArgs\.max_workers: no planner decides"):
        plan({"Frontend": {"ServiceArgs": {"max_workers": 2}}})


def test_without_etcd_there_are_no_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ETCD_ENDPOINTS", "http://127.0.0.1:9")
    with pytest.raises(
        ConfigError,
        match=r"^--dynamo-planner needs etcd, and none .*; start one, or name it in ETCD_ENDPOINTS$",
    ):
        plan({})

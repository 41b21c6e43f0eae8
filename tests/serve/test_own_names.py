"""For which models the frontend of a graph speaks."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from wavepp_worker.serve.graph import Graph, resolve
from wavepp_worker.serve.launch_plan import LaunchPlan, Options, make_launch_plan

from tests.support.lora_adapters import make_adapter

pytestmark = pytest.mark.usefixtures("in_the_repository")
DISAGG = "graphs:disagg_wavepp"
FLAG = "--served-model-name="


def plan(graph: Graph | str, only: str | None = None, **sections: dict[str, Any]) -> LaunchPlan:
    return make_launch_plan(resolve(graph) if isinstance(graph, str) else graph, sections, Options(only=only))


def names(plan: LaunchPlan) -> list[str]:
    """What its frontend is given."""
    [frontend] = [process for process in plan.processes if process.kind == "frontend"]
    return [word.removeprefix(FLAG) for word in frontend.argv if word.startswith(FLAG)]


@pytest.mark.parametrize("graph", [DISAGG, "graphs:agg_wavepp", "graphs:disagg_wavepp_queue"])
def test_a_frontend_speaks_for_the_model_of_its_graph(graph: str, tiny_llama: Path) -> None:
    assert names(plan(graph)) == ["SmolLM2-135M-Instruct"]
    assert names(plan(graph, Common={"model": str(tiny_llama)})) == ["llama"]
    assert names(plan(graph, Common={"served_model_name": "org/m"})) == ["org/m"]


def test_what_one_worker_is_called_is_everybodys(tiny_llama: Path) -> None:
    made = plan(DISAGG, PrefillWorker={"model": str(tiny_llama), "served_model_name": "x"})
    assert (names(made), made.model) == (["x"], "x")


def test_adapters_are_spoken_for_too(tiny_llama: Path, tmp_path: Path) -> None:
    path = make_adapter(tmp_path / "adapter", tiny_llama)
    common = {"model": str(tiny_llama), "lora_modules": f"poet={path},coder={path}"}
    assert names(plan(DISAGG, Common=common)) == ["llama,coder,poet"]


def test_who_says_otherwise_is_heard_and_names_no_worker() -> None:
    made = plan(DISAGG, Frontend={"served_model_name": "a,b"})
    assert (names(made), made.model) == (["a,b"], "SmolLM2-135M-Instruct")
    assert names(plan(DISAGG, Frontend={"served_model_name": None})) == []


def test_a_graph_with_workers_whose_names_nobody_knows_speaks_for_all() -> None:
    graph = resolve("graphs:agg_wavepp")
    frontend, worker = graph.services
    other = dataclasses.replace(
        worker, name="Other", common=("namespace",), needs_model=False, arguments=None
    )
    assert names(plan(Graph("g", (frontend, worker)))) == ["SmolLM2-135M-Instruct"]
    assert names(plan(Graph("g", (frontend, worker, other)))) == []
    assert names(plan(Graph("g", (frontend,)))) == []
    plain = dataclasses.replace(frontend, needs_model=False, arguments=None)
    assert names(plan(Graph("g", (plain, worker)))) == [], "Dynamo's own frontend has no such flag"


def test_a_frontend_alone_goes_by_the_settings_of_all_and_says_so(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYN_FILE_KV", str(tmp_path))
    monkeypatch.setenv("DYN_ZMQ_BROKER_URL", "xsub=ipc://a , xpub=ipc://b")
    alone = plan(
        DISAGG, "Frontend", Common={"model": str(tiny_llama)}, DecodeWorker={"served_model_name": "m"}
    )
    assert names(alone) == ["m"]
    assert alone.model is None, "whether there is such a worker only others know"
    assert any(note.startswith("requests for m are checked here, ") for note in alone.notes)
    for made in (
        plan(DISAGG, Common={"model": str(tiny_llama)}),
        plan(DISAGG, "Frontend", Frontend={"served_model_name": "m"}),
        plan(DISAGG, "DecodeWorker"),
    ):
        assert not any("checked here" in note for note in made.notes)

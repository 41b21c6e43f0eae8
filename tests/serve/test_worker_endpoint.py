from __future__ import annotations

from pathlib import Path

import pytest
from wavepp_worker.errors import ConfigError
from wavepp_worker.serve import PLANES, Service
from wavepp_worker.serve.graph import Graph
from wavepp_worker.serve.launch_plan import Options, make_launch_plan
from wavepp_worker.serve.services import FRONTEND, WORKER
from wavepp_worker.serve.settings import settle
from wavepp_worker.serve.worker_endpoint import endpoint_name

SERVICE = Service("Worker", "w", common=PLANES)


def name(endpoint: str | None, variable: str | None = None) -> str:
    config = {} if endpoint is None else {"Worker": {"endpoint": endpoint}}
    own = settle(Graph("g", (SERVICE,)), config, {"namespace": "n"})["Worker"]
    return endpoint_name(SERVICE, own, {} if variable is None else {"DYN_ENDPOINT": variable})


def test_it_is_a_name_or_ends_with_one() -> None:
    assert (name(None), name("x"), name("dyn://n.c.x"), name("n.c.x")) == ("generate", "x", "x", "x")
    assert (name(None, "x"), name("y", "x")) == ("x", "y")


@pytest.mark.parametrize("endpoint", ["dyn://other.c.x", "other.c.x"])
def test_one_that_the_graphs_frontend_never_finds_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        name(endpoint)
    assert str(caught.value) == (
        f"Worker.endpoint: {endpoint!r} is in the namespace 'other', and those who look for it are in 'n'; give the "
        "name alone, x, or set --Common.namespace=other"
    )


def test_a_plan_knows_those_of_its_workers(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DYN_ENDPOINT", raising=False)
    graph = Graph("g", (FRONTEND, WORKER))
    config = {"Common": {"model": str(tiny_llama)}, "Worker": {"endpoint": "x"}}
    plan = make_launch_plan(graph, config, Options())
    plan.held.close()
    assert plan.endpoints == {"x"}

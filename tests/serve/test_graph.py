"""Graphs by name."""

from __future__ import annotations

from pathlib import Path

import pytest
from wavepp_worker.errors import ConfigError
from wavepp_worker.serve import Graph, Service
from wavepp_worker.serve.graph import resolve

pytestmark = pytest.mark.usefixtures("in_the_repository")


@pytest.mark.parametrize(
    "target",
    [
        "graphs:disagg_wavepp",
        "graphs.disagg_wavepp",
        "graphs/disagg_wavepp.py",
        "graphs.disagg_wavepp:disagg_wavepp",
    ],
)
def test_graph_by_any_name(target: str) -> None:
    graph = resolve(target)
    assert graph.name == "disagg_wavepp"
    assert [service.name for service in graph.services] == ["Frontend", "DecodeWorker", "PrefillWorker"]


@pytest.mark.parametrize("target", ["graphs", "graphs:nope", "nope:x", "graphs/nope.py", "os", "", ":x"])
def test_unknown_graph_is_named(target: str) -> None:
    with pytest.raises(ConfigError, match=f"^graph {target}: "):
        resolve(target)


def test_module_with_one_graph_needs_no_name(tmp_path: Path) -> None:
    (tmp_path / "any.py").write_text(
        "from wavepp_worker.serve import Graph, Service\nmine = Graph('mine', (Service('A', 'a'),))\n"
    )
    assert resolve(str(tmp_path / "any.py")).name == "mine"


@pytest.mark.parametrize("names", [(), ("A", "A"), ("Common",)])
def test_graph_with_bad_names(names: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="graph g"):
        Graph("g", tuple(Service(name, "m") for name in names))

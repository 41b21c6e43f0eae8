"""Graphs by name."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from wavepp_worker.errors import ConfigError
from wavepp_worker.serve import Graph, Service
from wavepp_worker.serve.graph import resolve, shipped

from tests.support.graph_process import REPOSITORY

MINE = "from wavepp_worker.serve import Graph, Service\n\nmine = Graph('mine', (Service('A', 'json'),))"

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
    (tmp_path / "any.py").write_text(MINE)
    assert resolve(str(tmp_path / "any.py")).name == "mine"


def test_graphs_that_come_with_the_package_say_what_they_are() -> None:
    assert {graph.name: bool(graph.about) for graph in shipped()} == {
        "agg_wavepp": True,
        "disagg_wavepp": True,
        "disagg_wavepp_queue": True,
    }


def test_a_package_of_the_users_called_graphs_hides_no_graph_that_comes_with_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "graphs.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "graphs", raising=False)
    # As installed: the repository's graphs under the package's name.
    ours = importlib.util.spec_from_file_location(
        "wavepp_worker.graphs",
        REPOSITORY / "graphs" / "__init__.py",
        submodule_search_locations=[str(REPOSITORY / "graphs")],
    )
    assert ours is not None
    assert ours.loader is not None
    module = importlib.util.module_from_spec(ours)
    monkeypatch.setitem(sys.modules, "wavepp_worker.graphs", module)
    ours.loader.exec_module(module)
    try:
        assert resolve("graphs:mine").name == "mine"
        assert resolve("graphs:agg_wavepp").name == "agg_wavepp"
        with pytest.raises(ConfigError, match=r"has graphs:mine, graphs:agg_wavepp, graphs:disagg_wavepp"):
            resolve("graphs:nope")
    finally:
        sys.modules.pop("graphs", None)


@pytest.mark.parametrize("by", ["{name}.py", "{name}", "{name}:mine"])
@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("import nosuchthing", "ModuleNotFoundError: No module named 'nosuchthing'"),
        ("from wavepp_worker.serve import Nope", "ImportError: cannot import name 'Nope'"),
        ("print(undefined)", "NameError: name 'undefined' is not defined"),
        ("def f(:", "SyntaxError: "),
        ("Service(name='A')", "TypeError: "),
        ("import json; json.loads('{')", "JSONDecodeError: "),
        (
            "import dataclasses; dataclasses.replace(mine.services[0], replica=2)",
            "TypeError: Service.__init__() got an unexpected keyword argument 'replica' (did you mean replicas?); "
            "a Service has name, module, defaults",
        ),
    ],
)
def test_a_file_that_fails_is_reported_with_its_line(
    by: str, line: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"failing_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(f"{MINE}\n{line}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError) as caught:
        resolve(by.format(name=name))
    assert f"{tmp_path / name}.py, line 4 fails: {what}" in str(caught.value)


def test_what_lies_beside_a_file_elsewhere_can_be_imported_by_it_and_by_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"beside_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text("")
    (tmp_path / "g.py").write_text(f"import {name}\n{MINE}")
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert resolve(str(tmp_path / "g.py")).folder == tmp_path
    monkeypatch.chdir(tmp_path)
    assert resolve("g.py").folder is None


@pytest.mark.parametrize("names", [(), ("A", "A"), ("Common",)])
def test_graph_with_bad_names(names: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="graph g"):
        Graph("g", tuple(Service(name, "m") for name in names))

from __future__ import annotations

import pytest
from wavepp_worker.errors import ConfigError
from wavepp_worker.serve.graph import resolve
from wavepp_worker.serve.launch_plan import Options, make_launch_plan

pytestmark = pytest.mark.usefixtures("in_the_repository")


def test_processes_that_could_not_find_each_other_are_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = resolve("graphs:agg_wavepp")
    for config in (
        {"Common": {"discovery_backend": "mem"}},
        {"Worker": {"discovery_backend": "mem"}},
    ):
        with pytest.raises(ConfigError, match=r"discovery_backend: with mem a process finds nobody"):
            make_launch_plan(graph, config, Options())
    monkeypatch.setenv("DYN_DISCOVERY_BACKEND", "mem")
    with pytest.raises(ConfigError, match=r"^Frontend\.discovery_backend: with mem"):
        make_launch_plan(graph, {}, Options())
    assert make_launch_plan(graph, {"Common": {"discovery_backend": "file"}}, Options()).discovery == "file"

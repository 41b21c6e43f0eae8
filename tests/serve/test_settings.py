"""What each service is started with, and its flags."""

from __future__ import annotations

from typing import Any

import pytest
from wavepp_worker.errors import ConfigError
from wavepp_worker.serve import PLANES, Graph, Service
from wavepp_worker.serve.config_sources import deep_merge, split_overrides
from wavepp_worker.serve.settings import settle, to_flags

A = Service("A", "a", {"pp": 2}, common=(*PLANES, "model", "block"), replicas=2)
B = Service("B", "b", common=(*PLANES, "model"))
GRAPH = Graph("g", (A, B))
FILE_SETTINGS = {
    "Common": {"model": "m", "block": 16},
    "A": {"pp": 4, "ServiceArgs": {"workers": 3, "envs": {"X": 1, "Y": True}, "resources": {"gpu": 2}}},
}


def test_command_line_does_not_wipe_out_the_rest_of_service_args() -> None:
    _, overrides = split_overrides(["--A.ServiceArgs.envs.X=2", "--A.block=32"])
    own = settle(GRAPH, deep_merge(FILE_SETTINGS, overrides), {"namespace": "n"})["A"]
    assert own.workers == 3
    assert own.gpus == 2
    assert own.envs == {"X": "2", "Y": "true"}
    assert own.flags == {"pp": 4, "namespace": "n", "model": "m", "block": 32}


def test_graph_gives_the_defaults() -> None:
    own = settle(GRAPH, {}, {})["A"]
    assert own.flags == {"pp": 2}
    assert (own.workers, own.gpus, own.envs, own.asked) == (2, 0, {}, frozenset())


def test_common_keys_reach_the_services_that_know_them() -> None:
    settled = settle(GRAPH, FILE_SETTINGS, {})
    assert settled["A"].flags["block"] == 16
    assert "block" not in settled["B"].flags


def test_common_configs_choose_among_the_common_keys() -> None:
    config = {"Common": {"model": "m", "extra": 1}, "A": {"common-configs": ["extra"]}}
    settled = settle(GRAPH, config, {"namespace": "n"})
    assert settled["A"].flags == {"pp": 2, "namespace": "n", "extra": 1}
    assert settled["B"].flags == {"namespace": "n", "model": "m"}


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"C": {}}, "C: "),
        ({"Common": {"blok": 1}}, "Common.blok: "),
        ({"A": {"ServiceArgs": {"worker": 1}}}, "A.ServiceArgs.worker: "),
        ({"A": {"ServiceArgs": {"workers": "two"}}}, "A.ServiceArgs.workers: "),
        ({"A": {"ServiceArgs": {"workers": 0}}}, "A.ServiceArgs.workers: "),
        ({"A": {"ServiceArgs": {"resources": {"gpus": 1}}}}, "A.ServiceArgs.resources.gpus: "),
        ({"A": {"ServiceArgs": {"resources": {"gpu": 0.5}}}}, "A.ServiceArgs.resources.gpu: "),
        ({"A": {"ServiceArgs": {"envs": ["X"]}}}, "A.ServiceArgs.envs: "),
        ({"A": {"ServiceArgs": 3}}, "A.ServiceArgs: "),
        ({"A": {"common-configs": ["nope"]}}, "A.common-configs: "),
        ({"A": {"common-configs": "model"}}, "A.common-configs: "),
    ],
)
def test_what_nothing_understands_is_named(config: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settle(GRAPH, config, {})
    assert str(caught.value).startswith(key)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Processor", "Frontend tokenises now"),
        ("Router", "Frontend routes now"),
        ("VllmWorker", "DecodeWorker generates now, or Worker where one does both"),
    ],
)
def test_services_of_the_former_launcher_are_told_who_does_that_now(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{name}\.x: graph g has no service {name}: {said};"):
        settle(GRAPH, {name: {"x": 1}}, {})


def test_flags() -> None:
    values = {"kv_tokens": 3, "on": True, "off": False, "no": None, "parts": [1, 2], "map": {"a": 1}}
    assert to_flags(values) == ["--kv-tokens=3", "--on", "--no-off", "--parts=1,2", '--map={"a": 1}']

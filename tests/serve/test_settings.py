"""Files, overrides and how they merge."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wavepp_worker.errors import ConfigError
from wavepp_worker.serve import PLANES, Graph, Service
from wavepp_worker.serve.settings import deep_merge, read_file, settle, split_overrides, to_flags

KEYS = st.sampled_from("abcd")
TREES = st.recursive(
    st.dictionaries(KEYS, st.integers(), max_size=3),
    lambda inner: st.dictionaries(KEYS, st.one_of(st.integers(), inner), max_size=3),
    max_leaves=12,
)


def leaves(tree: dict[str, Any], path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    found: dict[tuple[str, ...], Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            found |= leaves(value, (*path, key))
        else:
            found[(*path, key)] = value
    return found


def says_something_at(tree: Any, path: tuple[str, ...]) -> bool:
    """Whether the tree has a value at the path, or a leaf on the way to it."""
    for key in path:
        if not isinstance(tree, dict):
            return True
        if key not in tree:
            return False
        tree = tree[key]
    return True


@given(TREES, TREES)
def test_deep_merge_takes_every_leaf_of_the_second_and_what_it_leaves_of_the_first(
    base: dict[str, Any], over: dict[str, Any]
) -> None:
    before = copy.deepcopy((base, over))
    merged = leaves(deep_merge(base, over))
    assert (base, over) == before
    assert merged.items() >= leaves(over).items()
    for path, value in leaves(base).items():
        assert says_something_at(over, path) or merged[path] == value
    assert merged.items() <= {*leaves(base).items(), *leaves(over).items()}


@given(TREES)
def test_deep_merge_with_itself_or_nothing_changes_nothing(tree: dict[str, Any]) -> None:
    assert deep_merge(tree, tree) == deep_merge(tree, {}) == deep_merge({}, tree) == tree


def test_overrides_are_taken_out_of_the_command_line() -> None:
    rest, overrides = split_overrides(
        ["graphs:x", "--A.pp=3", "-f", "c.yaml", "--A.kv-tokens", "64", "--B.verbose", "--port", "1"]
    )
    assert rest == ["graphs:x", "-f", "c.yaml", "--port", "1"]
    assert overrides == {"A": {"pp": 3, "kv_tokens": 64}, "B": {"verbose": True}}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("-3", -3),
        ("0.5", 0.5),
        ("True", True),
        ("null", None),
        ("[1, 2]", [1, 2]),
        ('{"a": 1}', {"a": 1}),
        ("10,8,6,6", "10,8,6,6"),
        ("007", "007"),
        ("1.10", "1.10"),
        ("[unfinished", "[unfinished"),
        ("a=b", "a=b"),
        ("", ""),
    ],
)
def test_override_values(text: str, value: object) -> None:
    assert split_overrides([f"--A.key={text}"]) == ([], {"A": {"key": value}})


def test_environment_values_stay_text() -> None:
    _, overrides = split_overrides(["--A.ServiceArgs.envs.N=1", "--A.ServiceArgs.envs.B", "true"])
    assert overrides == {"A": {"ServiceArgs": {"envs": {"N": "1", "B": "true"}}}}


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


def test_flags() -> None:
    values = {"kv_tokens": 3, "on": True, "off": False, "no": None, "parts": [1, 2], "map": {"a": 1}}
    assert to_flags(values) == ["--kv-tokens=3", "--on", "--no-off", "--parts=1,2", '--map={"a": 1}']


def test_file_with_dashes_and_empty_sections(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("A:\n  kv-tokens: 3\n  common-configs: [model]\nB:\n")
    assert read_file(tmp_path / "c.yaml") == {"A": {"kv_tokens": 3, "common-configs": ["model"]}, "B": {}}


@pytest.mark.parametrize("text", ["- 1\n", "A: [1\n", "A: 3\n"])
def test_bad_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"-f .*c\.yaml"):
        read_file(tmp_path / "c.yaml")

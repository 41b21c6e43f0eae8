"""Files, overrides and how they merge."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wavepp_worker.errors import ConfigError
from wavepp_worker.serve import Graph, Service
from wavepp_worker.serve.config_sources import deep_merge, merge, read_file, split_overrides

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


@pytest.mark.parametrize("number", ["-5", "-.5"])
def test_a_negative_number_after_a_blank_is_a_value(number: str) -> None:
    rest, overrides = split_overrides(["--A.kv_tokens", number, "--A.verbose", "-f", "c.yaml"])
    assert rest == ["-f", "c.yaml"]
    assert str(overrides["A"]["kv_tokens"]) == number
    assert overrides["A"]["verbose"] is True


def test_a_key_that_is_given_twice_is_refused_in_whichever_spellings() -> None:
    with pytest.raises(
        ConfigError, match=r"^--A\.kv-tokens: is given already, as --A\.kv_tokens; keep one of the two$"
    ):
        split_overrides(["--A.kv_tokens=1", "--A.kv-tokens", "2"])
    with pytest.raises(ConfigError, match=r"^--A\.pp: is given already; keep one of the two$"):
        split_overrides(["--A.pp=1", "--A.pp=1"])
    split_overrides(["--A.pp=1", "--B.pp=1", "--A.ServiceArgs.envs.pp=1"])


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


def test_file_with_dashes_and_empty_sections(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("A:\n  kv-tokens: 3\n  common-configs: [model]\nB:\n")
    assert read_file(tmp_path / "c.yaml") == {"A": {"kv_tokens": 3, "common-configs": ["model"]}, "B": {}}


@pytest.mark.parametrize("text", ["- 1\n", "A: [1\n", "A: 3\n"])
def test_bad_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"-f .*c\.yaml"):
        read_file(tmp_path / "c.yaml")


RENAMED = Graph("g", (Service("A", "a", former={"old": "new"}), Service("B", "b")))


def test_sources_merge_under_the_present_names_and_only_where_a_service_renamed_a_key() -> None:
    file = {"A": {"old": 1}, "B": {"old": 2}, "Common": {"old": 3}}
    assert merge(RENAMED, file) == {"A": {"new": 1}, "B": {"old": 2}, "Common": {"new": 3}}
    assert merge(RENAMED, file, {"A": {"new": 4}})["A"] == {"new": 4}
    assert merge(RENAMED, {"A": {"new": 4}}, file)["A"] == {"new": 1}
    assert merge(RENAMED, {"A": {"common-configs": ["old", "x"]}})["A"] == {"common-configs": ["new", "x"]}
    with pytest.raises(ConfigError, match=r"^A\.old and A\.new are the former and the present name"):
        merge(RENAMED, {"A": {"old": 1, "new": 1}})

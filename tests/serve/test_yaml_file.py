"""Configuration files: every key once, and where it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from wavepp_worker.errors import ConfigError
from wavepp_worker.serve.yaml_file import key_lines, load_yaml


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("A:\n  pp: 1\n  pp: 2\n", ", line 3: pp is in line 2 already; keep one of the two"),
        ("A:\n  kv-tokens: 1\n  x: 1\n  kv_tokens: 2\n", ", line 4: kv_tokens is in line 2 already"),
        ("A: {pp: 1}\nB:\nA: {pp: 1}\n", ", line 3: A is in line 1 already"),
        ("A:\n  S: {envs: {N: 1, N: 2}}\n", ", line 2: N is in line 2 already"),
        ("A: [1\nB: 2\n", ", line 2: "),
        ("B:\nA:\n  pp:\n", ", line 3: A.pp has no value; give it one, or leave the key out"),
        ("A:\n  S:\n    envs:\n      N:\n", ", line 4: A.S.envs.N has no value"),
        ('A:\n  model: "a\\0b"\n', ", line 2: has a NUL, which"),
        ('A:\n  x: 1\n  labels: [a, ["\\0"]]\n', ", line 3: has a NUL"),
        ('A:\n  b: [{c: "\\0"}]\n', ", line 2: has a NUL"),
        ('A:\n  "b\\0": 1\n', ", line 2: has a NUL"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_line(text: str, sentence: str, tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_yaml(file, Path("shown.yaml"))
    assert str(caught.value).startswith(f"-f shown.yaml{sentence}")
    assert "\n" not in str(caught.value)


def test_a_list_that_holds_itself_is_no_endless_walk(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("A:\n  b: &x [*x]\n")
    assert set(load_yaml(file, file)) == {"A"}


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_bytes(b"\xff\xfe: 1")
    for file, sentence in (
        (tmp_path / "c.yaml", "is not text in UTF-8"),
        (tmp_path / "no", "cannot be read"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            load_yaml(file, file)


def test_keys_may_be_merged_in_and_repeated_in_another_section(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("A: &a\n  pp: 1\n  dtype: auto\nB:\n  <<: *a\n  pp: 2\n")
    assert load_yaml(file, file) == {"A": {"pp": 1, "dtype": "auto"}, "B": {"pp": 2, "dtype": "auto"}}


def test_a_section_may_be_empty_and_a_value_null(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("A:\nB:\n  pp: null\n  x: ''\n")
    assert load_yaml(file, file) == {"A": None, "B": {"pp": None, "x": ""}}


def test_lines_of_keys(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("# one\nA:\n  kv-tokens: 1\n  ServiceArgs:\n    envs: {N: 1}\nB:\n")
    assert key_lines(file, file) == {
        ("A",): 2,
        ("A", "kv-tokens"): 3,
        ("A", "ServiceArgs"): 4,
        ("A", "ServiceArgs", "envs"): 5,
        ("A", "ServiceArgs", "envs", "N"): 5,
        ("B",): 6,
    }
    file.write_text("")
    assert key_lines(file, file) == {}

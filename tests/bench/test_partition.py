"""Which division of layers ``bench.partition`` finds, and of what it says so."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import typer
from typer.testing import CliRunner
from wavepp_worker.model.model_info import read_model_info
from wavepp_worker.model.partition import partition_layers

from bench import partition
from bench.partition import Wave, kinds_of, main, measured, seconds_of


def test_one_layer_of_each_kind_is_timed_and_the_last_by_itself(tiny_model: Callable) -> None:
    kinds = {
        family: list(kinds_of(read_model_info(tiny_model(family))).values())
        for family in ("llama", "gemma3_text")
    }
    assert kinds["llama"] == [0, 0, 0, 0, 0, 5]
    assert kinds["gemma3_text"] == [0, 0, 0, 0, 0, 5], "the sixth sees everything, and is the last"
    dense_first = read_model_info(tiny_model("deepseek_v3"))
    assert list(kinds_of(dense_first).values()) == [0, 0, 2, 2, 2, 5]


@pytest.mark.parametrize("family", ["llama", "deepseek_v3", "qwen3_next", "glm_moe_dsa", "gpt_oss"])
def test_every_kind_of_layer_can_be_timed(
    family: str, tiny_model: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition, "RUNS", 1)
    directory = tiny_model(family)
    layers = sorted(set(kinds_of(read_model_info(directory)).values()))
    for wave in (Wave(requests=2, tokens=5, behind=40), Wave(requests=1, tokens=33, behind=0)):
        seconds = seconds_of(directory, layers, wave, "float32", "cpu", 1)
        assert seconds.keys() == set(layers)
        assert all(0 < each < 10 for each in seconds.values())


def test_the_division_follows_what_was_timed(tiny_model: Callable) -> None:
    info = read_model_info(tiny_model("deepseek_v3"))
    slow_start = measured(info, {0: 4.0, 2: 1.0, 5: 1.0})
    assert [len(each) for each in partition_layers(slow_start, 3, None)] == [1, 1, 4]
    assert [len(each) for each in partition_layers(slow_start, 2, None)] == [1, 5]


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Any:
    monkeypatch.setenv("COLUMNS", "200")
    app = typer.Typer()
    app.command()(main)
    return CliRunner().invoke(app, arguments)


def test_the_command(tiny_model: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process of its own, as it is run."""
    model = str(tiny_model("llama"))
    small = ("--model", model, "--tokens", "8", "--dtype", "float32")
    result = run(monkeypatch, *small, "--stages", "3", "--stages", "6")
    assert result.exit_code == 0, result.output
    rows = [line.split() for line in result.output.splitlines()]
    [six] = [row for row in rows if row[:1] == ["6"]]
    assert six[1:3] == ["1,1,1,1,1,1"] * 2
    assert six[-1] == "0.0%"
    result = run(monkeypatch, *small, "--stages", "7")
    assert result.exit_code == 2
    assert "7 stages cannot share 6 layers" in re.sub(r"[│\s]+", " ", result.output)

"""Which division of layers ``bench.partition`` finds, and what it says of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner
from wavepp_worker.model.model_info import ModelInfo, read_model_info
from wavepp_worker.model.timed.timed_model import write_timed_model

from bench.partition import stage_times
from bench.partition.__main__ import divide, main
from bench.partition.stage_times import StageTimes, Wave, kinds_of
from tests.support.timed_models import timed_model
from tests.support.tiny_models import make_model


class Calculated(StageTimes):
    """A stage takes ``stage`` seconds and what its layers take; ``asked`` are those that were timed."""

    def __init__(self, info: ModelInfo, layers: Sequence[float], stage: float) -> None:
        super().__init__(info, Wave(1, 8, 0), "float32", "cpu")
        self._layers, self._stage = layers, stage
        self.asked: list[range] = []

    def seconds(self, layers: range) -> float:
        self.asked.append(layers)
        return self._stage + sum(self._layers[layers.start : layers.stop])


def sizes(division: Sequence[range]) -> list[int]:
    return [len(layers) for layers in division]


def test_one_layer_of_each_kind_is_timed_and_the_last_by_itself(tiny_model: Callable) -> None:
    assert kinds_of(read_model_info(tiny_model("llama"))) == [1, 1, 1, 1, 1, 5]
    assert kinds_of(read_model_info(tiny_model("gemma3_text"))) == [1, 1, 1, 1, 1, 5], (
        "the sixth sees everything, and is the last"
    )
    assert kinds_of(read_model_info(tiny_model("deepseek_v3"))) == [1, 1, 2, 2, 2, 5], "two are dense"
    assert kinds_of(read_model_info(tiny_model("gpt_oss")))[:3] == [2, 1, 2], "every second has a window"


def test_a_layer_that_sees_everything_is_none_with_a_window(tmp_path: Path) -> None:
    """They multiply as many parameters."""
    info = read_model_info(make_model(tmp_path / "eight", "gemma3_text", num_hidden_layers=8))
    assert info.layer_costs[0] == info.layer_costs[5]
    assert kinds_of(info) == [1, 1, 1, 1, 1, 5, 1, 7]


def test_layers_of_experts_are_no_dense_ones_though_a_token_meets_as_many_parameters(tmp_path: Path) -> None:
    """Of 48 experts of 128 it meets 4 and the router: as many as in a dense layer of 4 * 128 + 16."""
    model = make_model(
        tmp_path / "tie",
        "qwen3_moe",
        num_experts=48,
        num_experts_per_tok=4,
        moe_intermediate_size=128,
        intermediate_size=4 * 128 + 16,
        mlp_only_layers=[0, 1],
    )
    info = read_model_info(model)
    assert info.layer_costs[1] == info.layer_costs[2]
    assert kinds_of(info) == [1, 1, 2, 2, 2, 5]


@pytest.mark.parametrize("stage", [0.0, 0.4])
def test_what_a_stage_takes_is_no_layers(stage: float, tiny_model: Callable) -> None:
    info = read_model_info(tiny_model("deepseek_v3"))
    layers = [0.5, 0.5, 1.0, 1.0, 1.0, 2.0]
    times = Calculated(info, layers, stage)
    found, of_a_stage = times.by_layer()
    assert found == pytest.approx(layers)
    assert of_a_stage == pytest.approx(stage)


def test_noise_makes_no_layer_cost_less_than_nothing(
    tiny_model: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = read_model_info(tiny_model("llama"))
    times = Calculated(info, [1.0] * 6, 0.0)
    known = {range(1, 5): 0.1, range(5, 6): 0.2}
    monkeypatch.setattr(times, "seconds", lambda layers: known.get(layers, 1.0))
    found, of_a_stage = times.by_layer()
    assert min(found) == 0.0
    assert of_a_stage == 0.2


def test_the_division_follows_what_was_timed(tiny_model: Callable) -> None:
    info = read_model_info(tiny_model("llama"))
    layers = [4.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    times = Calculated(info, layers, 0.5)
    two = divide(times, layers, 0.5, 2)
    assert (sizes(two.default), sizes(two.best)) == ([3, 3], [1, 5])
    assert two.seconds == (6.5, 5.5)
    assert two.bound == 5.0
    assert two.gain == pytest.approx(6.5 / 5.5 - 1)
    assert {*two.default, *two.best} <= {*times.asked}, "timed as a whole"


def test_what_is_no_better_is_not_recommended(tiny_model: Callable) -> None:
    """The stages that were timed say so, whatever single layers promised."""
    info = read_model_info(tiny_model("llama"))
    promised = [4.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    assert divide(Calculated(info, [1.0] * 6, 0.0), promised, 0.0, 2).gain == 0.0


@pytest.mark.parametrize("family", ["llama", "deepseek_v3", "qwen3_next", "glm_moe_dsa", "gpt_oss"])
def test_stages_of_every_kind_of_layer_can_be_timed(
    family: str, tiny_model: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage_times, "RUNS", 1)
    info = read_model_info(tiny_model(family))
    for wave in (Wave(requests=2, tokens=5, behind=40), Wave(requests=1, tokens=33, behind=0)):
        noticed: list[range] = []
        times = StageTimes(info, wave, "float32", "cpu", noticed.append)
        layers, stage = times.by_layer()
        assert len(layers) == info.num_layers
        assert all(0 <= each < 10 for each in (*layers, stage))
        asked = len(noticed)
        times.by_layer()
        assert len(noticed) == asked, "once"


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Any:
    monkeypatch.setenv("COLUMNS", "200")
    app = typer.Typer()
    app.command()(main)
    return CliRunner().invoke(app, arguments)


def test_the_command(tiny_model: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_times, "RUNS", 1)
    small = ("--model", str(tiny_model("llama")), "--tokens", "8", "--dtype", "float32")
    result = run(monkeypatch, *small, "--stages", "6", "--stages", "6")
    assert result.exit_code == 0, result.output
    [row] = [line.split() for line in result.output.splitlines() if line.split()[:1] == ["6"]]
    assert row[1:3] == ["1,1,1,1,1,1", "none"]
    assert row[-1] == "1.00"


def test_what_is_asked_for_is_what_is_timed(tiny_model: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    load = stage_times.load_stage

    def loaded(model: Path, layers: range, dtype: torch.dtype, device: str, *given: Any) -> Any:
        stage = load(model, layers, dtype, "cpu", *given)
        forward = stage.forward
        stage.forward = lambda inputs, chunks, kv: (
            asked.append((device, dtype, chunks)) or forward(inputs, chunks, kv)
        )
        return stage

    monkeypatch.setattr(stage_times, "RUNS", 1)
    monkeypatch.setattr(stage_times, "load_stage", loaded)
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: asked.append(threads))
    wave = ("--requests", "2", "--tokens", "8", "--behind", "40", "--dtype", "bfloat16")
    result = run(
        monkeypatch,
        "--model",
        str(tiny_model("llama")),
        *wave,
        "--device",
        "cuda:1",
        "--threads",
        "3",
        "--stages",
        "2",
    )
    assert result.exit_code == 0, result.output
    assert asked.pop(0) == 3
    for device, dtype, chunks in asked:
        assert (device, dtype) == ("cuda:1", torch.bfloat16)
        assert [(chunk.start, chunk.length) for chunk in chunks] == [(40, 8)] * 2
        tables = torch.cat([chunk.block_table for chunk in chunks]).tolist()
        assert len({*tables}) == len(tables) == 4, "blocks of their own"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--stages", "7"), "7 stages cannot share 6 layers"),
        (("--behind", "8192"), "8200 tokens of a prompt are more than the model's context of 8192"),
        (("--requests", "100000000000"), "cannot be computed here"),
        (("--device", "gpu"), "device: gpu cannot be used"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(
    arguments: tuple[str, ...], sentence: str, tiny_model: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = ("--model", str(tiny_model("llama")), "--tokens", "8", "--dtype", "float32")
    result = run(monkeypatch, *small, *arguments)
    assert result.exit_code == 2, result.output
    assert sentence in re.sub(r"[│\s]+", " ", result.output)


def test_what_has_no_two_stages_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timed = write_timed_model(tmp_path / "timed", timed_model(speed=1000.0))
    one = make_model(tmp_path / "one", "llama", num_hidden_layers=1)
    for model, sentence in ((timed, "compute nothing"), (one, "it has one layer")):
        result = run(monkeypatch, "--model", str(model))
        assert result.exit_code == 2
        assert sentence in re.sub(r"[│\s]+", " ", result.output)

"""Waves that mix adapters give each request the logits of a model into which its adapter is merged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from wavepp_worker.errors import ConfigError
from wavepp_worker.model.lora import read_adapters
from wavepp_worker.model.stage import Chunk
from wavepp_worker.model.stage_loader import load_stage

from tests.support.lora_adapters import ATTENTION, DENSE, make_adapter, merge
from tests.support.reference import Reference

BLOCK = 4
LATENT = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj", "shared_experts.up_proj")


def wave(stages: list, kvs: list, chunks: list[Chunk], tokens: torch.Tensor) -> torch.Tensor:
    data: object = tokens
    for stage, kv in zip(stages, kvs, strict=True):
        output = stage.forward(data, chunks, kv)
        data = output.activations
    return output.logits


@pytest.mark.parametrize(
    ("family", "ends", "targets"),
    [
        ("llama", (6,), ((*ATTENTION, *DENSE), ("q_proj", "down_proj"))),
        ("llama", (1, 4, 6), ((*ATTENTION, *DENSE), ("layers.3.self_attn.v_proj",))),
        ("qwen3_moe", (3, 6), (ATTENTION, ("k_proj",))),
        ("deepseek_v3", (2, 6), (LATENT, ("o_proj",))),
    ],
)
def test_packed_waves_mix_adapters(
    family: str,
    ends: tuple[int, ...],
    targets: tuple[tuple[str, ...], ...],
    tiny_model: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    model = tiny_model(family)
    paths = {
        name: make_adapter(tmp_path / name, model, each, seed=seed, r=2 + seed, use_rslora=seed == 1)
        for seed, (name, each) in enumerate(zip(("one", "two"), targets, strict=True))
    }
    given = [f"{name}={path}" for name, path in paths.items()]
    adapters = list(read_adapters(given).values())
    ranges = [range(a, b) for a, b in zip((0, *ends[:-1]), ends, strict=True)]
    stages = [load_stage(model, layers, torch.float32, "cpu", adapters) for layers in ranges]
    kvs = [stage.make_kv(32, BLOCK) for stage in stages]
    plain = {name: Reference(merge(tmp_path / f"{name}-merged", model, path)) for name, path in paths.items()}
    plain[""] = Reference(model)
    names = ["one", "", "two", "two", "one"]
    tokens = [torch.arange(9 + n) * (n + 3) % 290 for n in range(len(names))]
    tables = [torch.arange(4) + 4 * n for n in range(len(names))]
    # All prompts in one wave but for their last tokens; then a mixed wave; then decode steps. Some end a wave earlier.
    done, logits = [0] * len(names), {}
    for left in (3, 2, 1, 0):
        chunks, packed, ended = [], [], []
        for n, name in enumerate(names):
            end = len(tokens[n]) - max(0, left - n % 2)
            if end == done[n]:
                continue
            ended += [n] * (end == len(tokens[n]))
            chunks.append(Chunk(done[n], end - done[n], tables[n], end == len(tokens[n]), adapter=name))
            packed.append(tokens[n][done[n] : end])
            done[n] = end
        rows = wave(stages, kvs, chunks, torch.cat(packed))
        assert rows.shape[0] == len(ended)
        logits |= dict(zip(ended, rows, strict=True))
    assert logits.keys() == set(range(len(names)))
    for n, name in enumerate(names):
        expected = plain[name].logits(tokens[n])[-1]
        torch.testing.assert_close(logits[n], expected, atol=2e-4, rtol=1e-4)
        if name:
            assert (plain[""].logits(tokens[n])[-1] - expected).abs().max() > 0.05, "it makes a difference"


def test_a_stage_reads_its_own_part_of_an_adapter_alone(tiny_llama: Path, tmp_path: Path) -> None:
    path = make_adapter(tmp_path / "a", tiny_llama, ("q_proj",))
    tensors = load_file(path / "adapter_model.safetensors")
    for name in tensors:
        if "layers.2." not in name:
            tensors[name] = torch.full_like(tensors[name], torch.nan)
    save_file(tensors, path / "adapter_model.safetensors")
    adapters = list(read_adapters([f"a={path}"]).values())
    stage = load_stage(tiny_llama, range(2, 3), torch.float32, "cpu", adapters)
    output = stage.forward(
        {"hidden": torch.ones(3, 64)},
        [Chunk(0, 3, torch.tensor([0]), False, adapter="a")],
        stage.make_kv(1, 4),
    )
    assert torch.isfinite(output.activations["hidden"]).all()


def test_an_adapter_of_another_model_is_refused(tiny_llama: Path, tiny_moe: Path, tmp_path: Path) -> None:
    def load(model: Path, path: Path) -> None:
        load_stage(model, range(2), torch.float32, "cpu", list(read_adapters([f"a={path}"]).values()))

    dense = make_adapter(tmp_path / "dense", tiny_llama, ("gate_proj",))
    with pytest.raises(
        ConfigError,
        match=r"a changes model\.layers\.0\.mlp\.gate_proj, which is no linear layer of this model that",
    ):
        load(tiny_moe, dense)
    tensors = load_file(dense / "adapter_model.safetensors")
    wide = {name: torch.ones(4, 65) if "lora_A" in name else each for name, each in tensors.items()}
    save_file(wide, dense / "adapter_model.safetensors")
    with pytest.raises(
        ConfigError, match=r"takes model\.layers\.0\.mlp\.gate_proj for 65 inputs and 112 outputs, but"
    ):
        load(tiny_llama, dense)
    deep = {name.replace("layers.5.", "layers.6."): each for name, each in tensors.items()}
    save_file(deep, dense / "adapter_model.safetensors")
    with pytest.raises(
        ConfigError, match=r"a changes model\.layers\.6\.mlp\.gate_proj, a layer that this model does"
    ):
        load(tiny_llama, dense)


def test_a_layer_that_is_not_called_is_refused(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one whose weight is multiplied with another one before."""
    from transformers.models.llama.modeling_llama import LlamaMLP

    monkeypatch.setattr(
        LlamaMLP, "forward", lambda self, x: x @ self.gate_proj.weight.T @ self.down_proj.weight.T
    )
    adapters = list(read_adapters([f"a={make_adapter(tmp_path / 'a', tiny_llama, ('up_proj',))}"]).values())
    with pytest.raises(
        ConfigError, match=r"a changes model\.layers\.\d\.mlp\.up_proj, which this model does not run"
    ):
        load_stage(tiny_llama, range(2), torch.float32, "cpu", adapters)

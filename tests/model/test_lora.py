from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from wavepp_worker.errors import ConfigError
from wavepp_worker.model.lora import adapter_numbers, read_adapters

from tests.support.lora_adapters import make_adapter
from tests.support.model_files import edit_json

Q0, Q5 = "model.layers.0.self_attn.q_proj", "model.layers.5.self_attn.q_proj"


def test_an_adapter_says_what_it_adds_to_which_layers(tiny_llama: Path, tmp_path: Path) -> None:
    path = make_adapter(
        tmp_path / "a",
        tiny_llama,
        ("q_proj", "o_proj"),
        rank_pattern={"layers.5.self_attn.q_proj": 2},
        alpha_pattern={"layers.0.self_attn.o_proj": 6, "o_proj": 2},
    )
    (adapter,) = read_adapters([f"tenant={path}"]).values()
    assert adapter.name == "tenant"
    assert len(adapter.pairs) == 12
    names = (Q0, Q5, "model.layers.0.self_attn.o_proj", "model.layers.1.self_attn.o_proj")
    assert [adapter.pairs[name].scale for name in names] == [8 / 4, 8 / 2, 6 / 4, 2 / 4], (
        "of two patterns that fit, the first"
    )
    assert set(adapter.in_layers(range(5, 6))) == {Q5, "model.layers.5.self_attn.o_proj"}
    assert adapter_numbers([f"tenant={path}"]) == 11 * 4 * (64 + 64) + 2 * (64 + 64)
    edit_json(path / "adapter_config.json", use_rslora=True)
    (other,) = read_adapters([f"tenant={path}"]).values()
    assert other.pairs[Q0].scale == 8 / 2
    assert other.key.startswith("tenant@")
    assert other.key != adapter.key, "its content is another"


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"peft_type": "IA3"}, "is a IA3 adapter; only LORA"),
        ({"use_dora": True}, "has DoRA, which is not supported"),
        (
            {"use_qalora": True},
            "has inputs that are averaged over groups .use_qalora., which is not supported",
        ),
        ({"modules_to_save": ["lm_head"]}, "has modules that are trained whole"),
        ({"bias": "all"}, "changes biases"),
        (
            {"init_lora_weights": "pissa_niter_4"},
            r"belongs to weights from .* .init_lora_weights=pissa_niter_4.",
        ),
        ({"init_lora_weights": "olora"}, "belongs to weights from"),
        ({"target_parameters": ["experts.gate_up_proj"]}, "has parameters that are no linear layers'"),
        ({"r": 8}, r"has rank 4 in model.layers.0.self_attn.q_proj, where its configuration says r: 8"),
        ({"lora_alpha": None}, "lora_alpha: None"),
        ({"lora_alpha": math.nan}, "lora_alpha: nan"),
        ({"alpha_pattern": {"(": 4}}, r"says alpha_pattern: \{'\(': 4\}, which are no patterns"),
        ({"rank_pattern": ["q_proj"]}, r"says rank_pattern: \['q_proj'\], which are no patterns"),
    ],
)
def test_kinds_of_adapters_that_are_not_supported_are_refused(
    config: dict[str, Any], says: str, tiny_llama: Path, tmp_path: Path
) -> None:
    path = make_adapter(tmp_path / "a", tiny_llama, ("q_proj",))
    edit_json(path / "adapter_config.json", **config)
    with pytest.raises(ConfigError, match=f"^lora_modules: tenant .*{says}"):
        read_adapters([f"tenant={path}"])


@pytest.mark.parametrize(
    "module",
    [
        "lm_head",
        "model.embed_tokens",
        "model.layers.0.self_attn.kv_b_proj",
        "model.layers.0.mlp.experts.3.up_proj",
        f"model.layers.{'9' * 5000}.mlp.up_proj",
    ],
    ids=lambda module: module[:40],
)
def test_targets_that_are_not_supported_are_refused(module: str, tiny_llama: Path, tmp_path: Path) -> None:
    path = make_adapter(tmp_path / "a", tiny_llama, ("q_proj",))
    tensors = load_file(path / "adapter_model.safetensors")
    for side in "AB":
        own = next(name for name in tensors if name.endswith(f"lora_{side}.weight"))
        tensors[f"base_model.model.{module}.lora_{side}.weight"] = tensors[own].clone()
    save_file(tensors, path / "adapter_model.safetensors")
    with pytest.raises(ConfigError, match=f"^lora_modules: tenant changes {module}, which is not supported"):
        read_adapters([f"tenant={path}"])


def test_what_is_no_adapter_is_refused(tiny_llama: Path, tmp_path: Path) -> None:
    path = make_adapter(tmp_path / "a", tiny_llama, ("q_proj",))

    def refused(says: str, *given: str) -> None:
        with pytest.raises(ConfigError, match=f"^lora_modules: {says}"):
            read_adapters(given)

    refused("'tenant' is no adapter; give name=directory", "tenant")
    refused("two adapters are called t", f"t={path}", f"t={path}")
    refused("t is .* has no adapter_config.json", f"t={tiny_llama}")
    tensors = load_file(path / "adapter_model.safetensors")
    del tensors[f"base_model.model.{Q0}.lora_B.weight"]
    save_file(tensors, path / "adapter_model.safetensors")
    refused(f"t has but one of lora_A and lora_B of {Q0}", f"t={path}")
    (path / "adapter_config.json").write_text(json.dumps([]))
    refused("t: .* does not hold a JSON object", f"t={path}")


@pytest.mark.parametrize(
    ("side", "shape"),
    [("B", (64, 5)), ("B", (64, 3)), ("A", (4,)), ("B", ()), ("A", (0, 64)), ("A", (4, 64, 1))],
)
def test_factors_that_cannot_be_multiplied_are_refused(
    side: str, shape: tuple[int, ...], tiny_llama: Path, tmp_path: Path
) -> None:
    """A rank would find out when the first request comes for them, and end."""
    path = make_adapter(tmp_path / "a", tiny_llama, ("q_proj",))
    tensors = load_file(path / "adapter_model.safetensors")
    tensors[f"base_model.model.{Q0}.lora_{side}.weight"] = torch.zeros(shape)
    save_file(tensors, path / "adapter_model.safetensors")
    with pytest.raises(
        ConfigError, match=rf"^lora_modules: tenant has lora_A of shape .* in {Q0}, which cannot"
    ):
        read_adapters([f"tenant={path}"])

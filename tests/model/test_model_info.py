from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer
from wavepp_worker.errors import ConfigError
from wavepp_worker.model import stage_loader
from wavepp_worker.model.model_info import read_model_info
from wavepp_worker.model.stage_loader import load_stage, resolve_dtype

from tests.support import tiny_models


@pytest.fixture
def copy(tiny_llama: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_llama, tmp_path / "copy"))


def edit(file: Path, **changes: Any) -> None:
    values = json.loads(file.read_text())
    values.update(changes)
    file.write_text(json.dumps(values))


def test_reads_a_tiny_model(tiny_llama: Path) -> None:
    info = read_model_info(tiny_llama)
    assert (info.num_layers, info.vocab_size, info.hidden_size, info.context_length) == (6, 300, 64, 8192)
    assert info.eos_token_ids == (tiny_models.EOS,)
    assert info.dtype == torch.float32
    per_layer = 64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 112 + 2 * 64
    assert info.layer_costs == (per_layer,) * 6
    assert 0 <= info.embedding_cost < info.head_cost < 300 * 64


def test_experts_cost_what_a_token_meets(tiny_moe: Path, tiny_mla: Path) -> None:
    attention = 64 * 64 * 2 + 64 * 32 * 2 + 2 * 16 + 2 * 64
    router = 4 * 64
    assert read_model_info(tiny_moe).layer_costs[0] == attention + router + 2 * (3 * 64 * 48)
    mla = read_model_info(tiny_mla).layer_costs
    assert mla[0] == mla[1] != mla[2] == mla[5]


def test_tied_head_costs_as_much_as_its_own(tiny_tied: Path, tiny_llama: Path) -> None:
    assert read_model_info(tiny_tied).head_cost == read_model_info(tiny_llama).head_cost


def test_end_tokens_of_both_files(copy: Path) -> None:
    edit(copy / "generation_config.json", eos_token_id=[299, 297])
    edit(copy / "config.json", eos_token_id=298)
    assert read_model_info(copy).eos_token_ids == (299, 297, 298)
    (copy / "generation_config.json").unlink()
    assert read_model_info(copy).eos_token_ids == (298,)


def test_identity_is_of_the_content(copy: Path, tiny_llama: Path, tiny_qwen3: Path) -> None:
    identity = read_model_info(tiny_llama).model_id
    int(identity, 16)
    assert read_model_info(copy).model_id == identity
    edit(copy / "config.json", transformers_version="5.0.0")
    assert read_model_info(copy).model_id == identity
    assert read_model_info(tiny_qwen3).model_id != identity
    weights = load_file(copy / "model.safetensors")
    changed = {k: v + 0.5 for k, v in weights.items()}
    save_file(changed, copy / "model.safetensors", metadata={"format": "pt"})
    assert read_model_info(copy).model_id != identity
    edit(copy / "config.json", rms_norm_eps=1e-3)
    assert read_model_info(copy).model_id != identity


def test_dtype_is_resolved(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = read_model_info(copy)
    monkeypatch.setattr(stage_loader, "_cpu_has_bfloat16", lambda: True)
    assert resolve_dtype("auto", info) == torch.float32
    assert resolve_dtype("bfloat16", info) == torch.bfloat16
    for stored, wanted in ((torch.bfloat16, torch.bfloat16), (torch.float16, torch.float32)):
        weights = load_file(copy / "model.safetensors")
        save_file({k: v.to(stored) for k, v in weights.items()}, copy / "model.safetensors")
        info = read_model_info(copy)
        assert info.dtype == stored
        assert resolve_dtype("auto", info) == wanted
    half = replace(info, dtype=torch.bfloat16)
    monkeypatch.setattr(stage_loader, "_cpu_has_bfloat16", lambda: False)
    assert resolve_dtype("auto", half) == torch.float32
    assert resolve_dtype("auto", half, "cuda:1") == torch.bfloat16
    assert resolve_dtype("bfloat16", half) == torch.bfloat16
    with pytest.raises(ConfigError, match="dtype: float16"):
        resolve_dtype("float16", info)


def test_missing_files_are_named(copy: Path, tmp_path: Path) -> None:
    def refused(path: Path, says: str) -> None:
        with pytest.raises(ConfigError, match=f"^model: .*{says}"):
            read_model_info(path)

    refused(tmp_path / "nowhere", "does not exist")
    refused(copy / "config.json", "is a file")
    refused(tmp_path, "not a Hugging Face model directory")
    weights = (copy / "model.safetensors").read_bytes()
    (copy / "model.safetensors").write_bytes(weights[:-100])
    refused(copy, "download it again")
    (copy / "model.safetensors").write_bytes(b"nonsense" * 20)
    refused(copy, "not a safetensors file")
    (copy / "model.safetensors").unlink()
    refused(copy, "no safetensors weights")
    (copy / "model.safetensors.index.json").write_text('{"weight_map": {"a": "part-1.safetensors"}}')
    refused(copy, "1 are missing .part-1")
    (copy / "tokenizer.json").unlink()
    refused(copy, "no tokenizer.json")
    (copy / "config.json").write_text("{")
    (copy / "tokenizer.json").write_text("{}")
    (copy / "model.safetensors").write_bytes(weights)
    refused(copy, "cannot be read as JSON")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model_type": "nothing_known"}, "cannot read the configuration"),
        ({"model_type": "t5"}, "t5 is not supported, as it is an encoder-decoder"),
        ({"model_type": "bert"}, "bert is not supported"),
        ({"model_type": "gpt2"}, "gpt2 is not supported"),
        ({"model_type": "mamba"}, "mamba is not supported, as it has recurrent"),
        ({"model_type": "qwen3_next"}, "qwen3_next is not supported, as it has recurrent"),
        ({"model_type": "glm_moe_dsa"}, "glm_moe_dsa is not supported, as its attention picks"),
        ({"model_type": "vit"}, "vit is not supported, as it is not a causal"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantised"),
        (
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
            "rotary embedding .dynamic. depends",
        ),
        ({"max_position_embeddings": None}, "max_position_embeddings"),
    ],
)
def test_architectures_that_cannot_run_are_refused(copy: Path, changes: dict[str, Any], says: str) -> None:
    edit(copy / "config.json", **changes)
    with pytest.raises(ConfigError, match=f"^model: .*{says}"):
        read_model_info(copy)


def test_windows_that_attention_does_not_ask_for_are_refused(
    tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    """The layers know no window though the configuration speaks of one: running on would be wrong."""
    directory = Path(shutil.copytree(tiny_model("llama"), tmp_path / "windowed"))
    edit(directory / "config.json", sliding_window=16)
    with pytest.raises(ConfigError, match=r"^model: .*attend with windows"):
        load_stage(directory, range(6), torch.float32, "cpu")


def test_tiny_tokenizer_puts_special_tokens_last(tiny_llama: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_llama)
    text = "the tokens of a wave, naïve 東京"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert max(ids) < tiny_models.NORMAL == min(tokenizer.all_special_ids)
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], add_generation_prompt=True, tokenize=False
    )
    assert chat.endswith("<|im_start|>assistant\n")

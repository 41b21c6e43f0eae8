"""What the configuration alone tells is what loaded stages hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from wavepp_worker.errors import ConfigError
from wavepp_worker.model import dtype_choice
from wavepp_worker.model.inspection import inspect_model
from wavepp_worker.model.kv.window_pool import window_pool
from wavepp_worker.model.stage_loader import load_stage
from wavepp_worker.model.timed.timed_model import write_timed_model

from tests.support.model_files import edit_json
from tests.support.timed_models import timed_model


@pytest.fixture
def bare(tiny_model: Callable[[str], Path], tmp_path: Path) -> Callable[..., Path]:
    """A directory with the configuration of a family, changed, and nothing else."""

    def make(family: str, **changes: object) -> Path:
        (tmp_path / "config.json").write_bytes((tiny_model(family) / "config.json").read_bytes())
        edit_json(tmp_path / "config.json", **changes)
        return tmp_path

    return make


@pytest.mark.parametrize(
    "family", ["llama", "tied", "mistral", "qwen3_moe", "deepseek_v3", "gpt_oss", "qwen3_next", "kimi_linear"]
)
def test_stages_hold_what_was_said(family: str, bare: Callable, tiny_model: Callable[[str], Path]) -> None:
    found = inspect_model(bare(family), pp=2, partition=(2, 4), dtype="float32")
    assert [stage.layers for stage in found.stages] == [(0, 2), (2, 6)]
    for said in found.stages:
        stage = load_stage(tiny_model(family), range(*said.layers), torch.float32, "cpu")
        held = sum(weight.nbytes for weight in stage._model.parameters())  # type: ignore[attr-defined]
        assert said.weight_bytes == held
        kv = stage.make_kv(2, 4, 3)
        assert said.cache_bytes == kv.bytes_per_token
        assert said.state_bytes == (kv.states.block_bytes if kv.states is not None else 0)
        assert sum(taken for _, taken in kv.regions()) == 2 * 4 * said.cache_bytes + 3 * said.state_bytes
        # As an engine has it: layers with windows have smaller pools.
        kv = stage.make_kv(90, 4, 3, lambda span: window_pool(90, 4, span, 2, 16)[0])
        held = sum(taken for _, taken in kv.regions()) - 3 * said.state_bytes
        assert held == said.pool_bytes(361, 4, 2, 16)
        assert (held < 90 * 4 * said.cache_bytes) == bool(said.windows) == (family == "gpt_oss")
    whole = load_stage(tiny_model(family), range(6), torch.float32, "cpu")
    assert found.parameters == sum(weight.numel() for weight in whole._model.parameters())  # type: ignore[attr-defined]
    assert not found.unsupported


def test_layers_are_told_apart_by_what_they_are(bare: Callable) -> None:
    found = inspect_model(bare("deepseek_v3"))
    assert [(kind.attention, kind.feed_forward, kind.layers) for kind in found.kinds] == [
        ("latent_attention", "dense", (0, 1)),
        ("latent_attention", "experts", (2, 3, 4, 5)),
    ]
    assert (found.heads, found.kv_heads, found.experts, found.experts_per_token) == (4, 1, 4, 2)
    # A token meets two of four experts.
    assert found.kinds[1].parameters - found.kinds[1].active_parameters == 2 * 3 * 64 * 48
    alternating = inspect_model(bare("gemma3_text", layer_types=["sliding_attention", "full_attention"] * 3))
    assert [(kind.attention, kind.window, kind.layers) for kind in alternating.kinds] == [
        ("sliding_attention", 24, (0, 2, 4)),
        ("full_attention", None, (1, 3, 5)),
    ]


def test_dtype_is_the_checkpoints_or_as_asked(bare: Callable) -> None:
    wide, narrow = inspect_model(bare("llama")), inspect_model(bare("llama"), dtype="bfloat16")
    assert (wide.dtype, narrow.dtype) == ("float32", "bfloat16")
    assert wide.stages[0].weight_bytes == 2 * narrow.stages[0].weight_bytes
    assert inspect_model(bare("llama", dtype="float16")).dtype == "float32"
    with pytest.raises(ConfigError, match="dtype: int8 is not supported"):
        inspect_model(bare("llama"), dtype="int8")


def test_auto_is_what_a_worker_computes_in(bare: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    model = bare("llama", dtype="bfloat16")
    monkeypatch.setattr(dtype_choice, "_cpu_has_bfloat16", lambda: False)
    wide, narrow = inspect_model(model), inspect_model(model, device="cuda")
    assert (wide.dtype, narrow.dtype) == ("float32", "bfloat16")
    assert wide.stages[0].cache_bytes == 2 * (narrow.stages[0].cache_bytes or 0)
    monkeypatch.setattr(dtype_choice, "_cpu_has_bfloat16", lambda: True)
    assert inspect_model(model) == narrow


def test_a_rotary_embedding_that_no_chunk_can_use_is_said_not_raised(bare: Callable) -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    found = inspect_model(bare("llama", rope_parameters=rope))
    assert found.unsupported == ("Its rotary embedding (dynamic) depends on the prompt's length.",)
    assert found.stages[0].cache_bytes


def test_quantised_weights_are_named_and_counted_as_they_are_kept(bare: Callable) -> None:
    plain = inspect_model(bare("llama"))
    known = inspect_model(bare("llama", quantization_config={"quant_method": "fp8"}))
    assert (known.quantisation, known.unsupported, known.stages) == ("fp8", (), plain.stages)
    (why,) = inspect_model(bare("llama", quantization_config={"quant_method": "gptq"})).unsupported
    assert why.startswith("Its weights are quantised as gptq, which cannot be undone here;")


def test_what_cannot_be_looked_at_is_refused(bare: Callable, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^model: .* has no config.json"):
        inspect_model(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="does not know the architecture nothing"):
        inspect_model(bare("llama", model_type="nothing"))
    with pytest.raises(ConfigError, match="pp: 7 stages cannot share 6 layers"):
        inspect_model(bare("llama"), pp=7)
    timed = write_timed_model(tmp_path / "timed", timed_model())
    with pytest.raises(ConfigError, match="timed model"):
        inspect_model(timed)


@pytest.mark.parametrize(
    "changes", [{"hidden_size": -1}, {"vocab_size": 10**30}, {"hidden_act": "x"}, {"num_key_value_heads": 0}]
)
def test_sizes_of_which_no_model_can_be_are_refused(changes: dict[str, object], bare: Callable) -> None:
    with pytest.raises(
        ConfigError, match=r"^model: transformers \S+ cannot (build a llama of these sizes|read)"
    ):
        inspect_model(bare("llama", **changes))

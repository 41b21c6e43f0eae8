"""Which modules count as Llama's."""

from __future__ import annotations

from typing import Any

import pytest
from transformers.models.gemma.configuration_gemma import GemmaConfig
from transformers.models.gemma.modeling_gemma import GemmaMLP
from transformers.models.glm.configuration_glm import GlmConfig
from transformers.models.glm.modeling_glm import GlmAttention
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP
from transformers.models.olmo.configuration_olmo import OlmoConfig
from transformers.models.olmo.modeling_olmo import OlmoAttention
from transformers.models.qwen3 import modeling_qwen3
from transformers.models.qwen3.configuration_qwen3 import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention
from wavepp_worker.model.known_modules import is_gated_silu, rotates_as_llama

SIZES: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 16, "num_attention_heads": 2}


def qwen3() -> Qwen3Attention:
    return Qwen3Attention(Qwen3Config(**SIZES, num_key_value_heads=1, head_dim=16), 0)


def test_a_gated_layer_is_told_by_its_code_and_its_activation() -> None:
    assert is_gated_silu(LlamaMLP(LlamaConfig(**SIZES)))
    assert not is_gated_silu(LlamaMLP(LlamaConfig(**SIZES, hidden_act="gelu")))
    assert is_gated_silu(GemmaMLP(GemmaConfig(**SIZES, hidden_act="silu"))), "a sibling"
    assert not is_gated_silu(qwen3())


def test_attention_is_told_by_its_code_and_its_rotation() -> None:
    assert rotates_as_llama(qwen3())
    assert not rotates_as_llama(OlmoAttention(OlmoConfig(**SIZES), 0)), "it may clip"
    assert not rotates_as_llama(GlmAttention(GlmConfig(**SIZES, num_key_value_heads=1, head_dim=16), 0)), (
        "it is Llama's, but rotates pairs that lie side by side"
    )
    assert not rotates_as_llama(LlamaMLP(LlamaConfig(**SIZES)))


@pytest.mark.parametrize("function", ["apply_rotary_pos_emb", "rotate_half"])
def test_attention_that_rotates_otherwise_is_another(function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Either of the two may differ alone, beside a ``forward`` that is known: kernels rotate as Llama's do."""
    attention = qwen3()
    known = getattr(modeling_qwen3, function)
    monkeypatch.setattr(modeling_qwen3, function, lambda *given: known(*given))
    assert not rotates_as_llama(attention)
    monkeypatch.delattr(modeling_qwen3, function)
    assert not rotates_as_llama(attention)

"""What kinds of layers keep, by the configurations of models that people run."""

from __future__ import annotations

from typing import Any

import pytest
from wavepp_worker.errors import ConfigError
from wavepp_worker.model.kv.layer_cache import layer_caches, layer_kinds, state_bytes, token_bytes

LLAMA_8B = {"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 32}
DEEPSEEK_V3 = {"num_hidden_layers": 61, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
GLM = {**DEEPSEEK_V3, "num_hidden_layers": 4, "index_topk": 2048, "index_head_dim": 128}
SLIDING = {"num_hidden_layers": 2, "num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128}


def test_heads_of_keys_and_values_are_kept() -> None:
    caches = layer_caches(LLAMA_8B.get)
    assert {cache.policy for cache in caches} == {"full"}
    assert token_bytes(caches, "bfloat16") == 32 * 2 * 8 * 128 * 2


def test_of_latent_attention_the_latent_is_kept_and_the_one_rotated_key() -> None:
    caches = layer_caches(DEEPSEEK_V3.get)
    assert token_bytes(caches, "bfloat16") == 61 * (512 + 64) * 2
    assert [tensor.name for tensor in caches[0].tensors] == ["latent", "rotary key"]


def test_index_keys_are_kept_by_the_layers_that_have_an_indexer() -> None:
    config = {**GLM, "indexer_types": ["full", "full", "shared", "shared"]}
    assert [cache.numbers for cache in layer_caches(config.get)] == [704, 704, 576, 576]
    assert [cache.numbers for cache in layer_caches(GLM.get)] == [704] * 4


def test_a_window_keeps_the_last_tokens() -> None:
    first, second = layer_caches({**SLIDING, "layer_types": ["sliding_attention", "full_attention"]}.get)
    assert (first.policy, first.span) == ("sliding", 128)
    assert (second.policy, second.span) == ("full", 0)
    assert first.bytes("float32") == second.bytes("float32") == 2 * 8 * 64 * 4


def test_windows_are_kept_whole_where_no_layer_sees_everything() -> None:
    assert {cache.policy for cache in layer_caches(SLIDING.get)} == {"full"}
    unused = {**SLIDING, "use_sliding_window": False}
    assert set(layer_kinds(unused.get)) == {"full_attention"}


def test_windows_slide_as_older_files_say_it() -> None:
    """Every so many layers one sees everything: ``sliding_window_pattern``, where there are no ``layer_types``."""
    older = {**SLIDING, "num_hidden_layers": 14, "sliding_window_pattern": 6}
    assert [at for at, cache in enumerate(layer_caches(older.get)) if cache.policy == "full"] == [5, 11]
    assert set(layer_kinds({**older, "sliding_window": None}.get)) == {"full_attention"}


QWEN3_NEXT = {
    "num_hidden_layers": 48,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "full_attention_interval": 4,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}
KIMI_LINEAR = {
    "num_hidden_layers": 4,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "linear_attn_config": {
        "full_attn_layers": [4],
        "kda_layers": [1, 2, 3],
        "num_heads": 32,
        "head_dim": 128,
        "short_conv_kernel_size": 4,
    },
}


def test_recurrent_layers_keep_a_state_of_a_prompt_and_nothing_of_a_token() -> None:
    """2 MiB of float32 for the matrices, and of the convolution three inputs, as the files of both say their layers."""
    hybrid = layer_caches(QWEN3_NEXT.get)
    assert [cache.per_token for cache in hybrid] == [False, False, False, True] * 12
    assert hybrid[0].bytes("bfloat16") == 4 * 32 * 128 * 128 + 2 * 3 * (2 * 16 * 128 + 32 * 128)
    assert token_bytes(hybrid, "bfloat16") == 12 * 2 * 2 * 256 * 2
    assert state_bytes(hybrid, "bfloat16") == 36 * hybrid[0].bytes("bfloat16")
    kimi = layer_caches(KIMI_LINEAR.get)
    assert [cache.policy for cache in kimi] == ["recurrent"] * 3 + ["full"]
    assert kimi[0].bytes("bfloat16") == 4 * 32 * 128 * 128 + 2 * 3 * 3 * 32 * 128


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (
            {**LLAMA_8B, "layer_types": ["full_attention"] * 31 + ["wavelet"]},
            "kind wavelet are not supported",
        ),
        ({**LLAMA_8B, "layer_types": ["indexed_attention"] * 32}, "kind indexed_attention are not supported"),
        ({**LLAMA_8B, "layer_types": ["linear_attention"] * 32}, "kind linear_attention are not supported"),
        ({**LLAMA_8B, "layer_types": ["full_attention"] * 10**6}, "layer_types are not 32 names"),
        ({**LLAMA_8B, "layer_types": [None] * 32}, "layer_types are not 32 names"),
        ({**LLAMA_8B, "layer_types": 0}, "layer_types are not 32 names"),
        ({**QWEN3_NEXT, "linear_key_head_dim": None}, "linear_key_head_dim: None"),
        ({**QWEN3_NEXT, "full_attention_interval": 0}, "full_attention_interval: 0"),
        ({**SLIDING, "sliding_window_pattern": 0}, "sliding_window_pattern: 0"),
        ({**KIMI_LINEAR, "linear_attn_config": -1}, "linear_attn_config: -1, where an object belongs"),
        ({**KIMI_LINEAR, "linear_attn_config": {"full_attn_layers": 5}}, "full_attn_layers: 5"),
        ({**LLAMA_8B, "indexer_types": ["full"]}, "indexer_types are not 32 names"),
        ({**GLM, "indexer_types": ["shared", "full", "full", "full"]}, "indexer_types begin with shared"),
        ({**LLAMA_8B, "num_key_value_heads": None}, "num_key_value_heads: None"),
        ({**LLAMA_8B, "num_hidden_layers": "many"}, "num_hidden_layers: 'many'"),
    ],
)
def test_what_is_not_known_is_refused_by_name(config: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        layer_caches(config.get)

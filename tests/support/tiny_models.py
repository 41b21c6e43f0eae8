"""Tiny models with random weights, as Hugging Face directories.

``python -m tests.support.tiny_models DIR`` makes one of each family.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, GenerationConfig, PreTrainedTokenizerFast

CONTEXT = 8192
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
NORMAL = 297
"""Normal tokens, numbered from 0. The special ones follow, as ids 0, 1, 2 must not end a generation."""
VOCABULARY = NORMAL + len(SPECIAL)
PAD, BOS, EOS = range(NORMAL, VOCABULARY)

_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_CORPUS = (
    "the quick brown fox jumps over the lazy dog and runs through the forest to the river",
    "a pipeline sends waves of tokens from stage to stage and keeps what it has computed",
    "there is another rain in the inner station on the train line near the sea",
)

_SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": CONTEXT,
    "tie_word_embeddings": False,
}
_EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 48}
_LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "head_dim": None,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
    "n_routed_experts": 4,
    "n_group": 2,
    "topk_group": 1,
    "n_shared_experts": 1,
    "first_k_dense_replace": 2,
    **_EXPERTS,
}

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "qwen3": {"model_type": "qwen3"},
    "tied": {"model_type": "qwen2", "tie_word_embeddings": True},
    "mistral": {"model_type": "mistral", "sliding_window": 24},
    "qwen3_moe": {"model_type": "qwen3_moe", "num_experts": 4, "norm_topk_prob": True, **_EXPERTS},
    "minimax_m2": {
        "model_type": "minimax_m2",
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "intermediate_size": 48,
    },
    "deepseek_v3": {"model_type": "deepseek_v3", **_LATENT},
    "glm_moe_dsa": {
        "model_type": "glm_moe_dsa",
        **_LATENT,
        # Few heads score many tokens with 0, and which of these are picked is chance.
        "index_n_heads": 16,
        "index_head_dim": 16,
        "index_topk": 12,
        "indexer_types": ["full", "full", "shared", "full", "shared", "shared"],
    },
    "mixtral": {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_next": {
        "model_type": "qwen3_next",
        "layer_types": ["linear_attention", "linear_attention", "full_attention"] * 2,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 12,
        "num_experts": 4,
        "shared_expert_intermediate_size": 48,
        **_EXPERTS,
    },
    "kimi_linear": {
        "model_type": "kimi_linear",
        "layer_types": ["linear_attention", "full_attention", "linear_attention"] * 2,
        "num_key_value_heads": 4,
        "head_dim": None,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 16,
        "v_head_dim": 12,
        "linear_num_heads": 3,
        "linear_head_dim": 8,
        "num_local_experts": 4,
        **_EXPERTS,
    },
    "gemma2": {
        "model_type": "gemma2",
        "sliding_window": 24,
        "query_pre_attn_scalar": 16,
        "tie_word_embeddings": True,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 8.0,
    },
    "gemma3_text": {"model_type": "gemma3_text", "sliding_window": 24, "tie_word_embeddings": True},
    "gpt_oss": {
        "model_type": "gpt_oss",
        "sliding_window": 24,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    "granite": {
        "model_type": "granite",
        "embedding_multiplier": 3.0,
        "logits_scaling": 2.0,
        "residual_multiplier": 0.7,
        "attention_multiplier": 0.2,
    },
}


def make_model(directory: Path, family: str = "llama", **overrides: Any) -> Path:
    """Write a model of one of ``FAMILIES`` with seeded random float32 weights into ``directory``.

    Args:
        directory: made if need be.
        family: key of ``FAMILIES``.
        overrides: configuration values to change.
    """
    directory.mkdir(parents=True, exist_ok=True)
    special = {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD}
    values = {**_SMALL, **special, **FAMILIES[family], **overrides}
    if values["head_dim"] is None:
        del values["head_dim"]
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    with torch.random.fork_rng():
        torch.manual_seed(17)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                _fill(name, parameter)
                if family == "qwen3_next" and "norm" in name and "linear_attn" not in name:
                    # Its norms multiply by one more than their weight.
                    parameter -= 1.0
    model.save_pretrained(directory)
    GenerationConfig(**special).save_pretrained(directory)
    make_tokenizer(directory)
    return directory


def _fill(name: str, parameter: torch.Tensor) -> None:
    """Wide enough that logits differ clearly between tokens and every part of the model matters."""
    if "A_log" in name:
        # A state that remembers for tens of tokens.
        parameter.uniform_(-4.0, -2.0)
    elif parameter.ndim == 1:
        parameter.uniform_(0.5, 1.5) if "norm" in name else parameter.normal_(0.0, 0.3)
    elif "embed" in name:
        parameter.normal_(0.0, 1.0)
    else:
        parameter.normal_(0.0, 1.5 * parameter.shape[-1] ** -0.5)


def make_tokenizer(directory: Path) -> None:
    """Write a byte-level BPE tokenizer of ``VOCABULARY`` tokens with a chat template."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=NORMAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    backend.train_from_iterator(_CORPUS, trainer)
    if backend.get_vocab_size() != NORMAL:
        raise RuntimeError(f"the corpus gave {backend.get_vocab_size()} tokens instead of {NORMAL}")
    backend.add_special_tokens(list(SPECIAL))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=SPECIAL[0],
        bos_token=SPECIAL[1],
        eos_token=SPECIAL[2],
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = _CHAT_TEMPLATE
    tokenizer.save_pretrained(directory, save_jinja_files=False)


if __name__ == "__main__":
    for each in FAMILIES:
        print(make_model(Path(sys.argv[1]) / each, each))

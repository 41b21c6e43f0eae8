"""Random models for real ranks on a small machine."""

from __future__ import annotations

from pathlib import Path

VOCABULARY = 512


def random_llama(directory: Path, dtype: str, **sizes: int) -> Path:
    """A random Llama of 8 layers, its weights in a ``dtype`` of torch's; other ``sizes`` by transformers' names."""
    # Imported late, as commands without real ranks do without them.
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(num_hidden_layers=8, num_attention_heads=4, num_key_value_heads=2, **sizes)
    LlamaForCausalLM(config).to(getattr(torch, dtype)).save_pretrained(directory)
    return directory


def tiny_llama(directory: Path, dtype: str = "bfloat16") -> Path:
    """Small enough that the engine counts, not only the arithmetic."""
    return random_llama(
        directory,
        dtype,
        vocab_size=49_152,
        hidden_size=256,
        intermediate_size=768,
        max_position_embeddings=65_536,
    )


def small_model(directory: Path) -> Path:
    """A random Llama whose layers take about as long as their launch, so that admission shows."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    words = Tokenizer(WordLevel({str(token): token for token in range(VOCABULARY)}))
    words.save(str(directory / "tokenizer.json"))
    return random_llama(
        directory,
        "float32",
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        max_position_embeddings=8192,
    )


def random_hybrid(directory: Path) -> Path:
    """A random Qwen3-Next of 8 layers, of which every fourth attends and the others are recurrent."""
    import torch
    from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

    torch.manual_seed(0)
    config = Qwen3NextConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=48,
        shared_expert_intermediate_size=48,
        max_position_embeddings=1024,
    )
    Qwen3NextForCausalLM(config).save_pretrained(directory)
    return directory

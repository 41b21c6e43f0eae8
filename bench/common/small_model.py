"""A model for real ranks on a small machine."""

from __future__ import annotations

from pathlib import Path

VOCABULARY = 512


def small_model(directory: Path, layers: int = 8) -> Path:
    """A random Llama whose layers take about as long as their launch, so that admission shows."""
    # The other commands, and this one's --help, do without them.
    import torch
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=8192,
    )
    LlamaForCausalLM(config).save_pretrained(directory)
    Tokenizer(WordLevel({str(token): token for token in range(VOCABULARY)})).save(
        str(directory / "tokenizer.json")
    )
    return directory

"""Models to measure with: the shapes of known ones, with random weights."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig


@dataclass(frozen=True)
class Shape:
    """A Llama's; ``tied``: the output head shares the embedding's weights."""

    layers: int
    hidden: int
    heads: int
    key_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied: bool = False

    def flops(self, prompts: Iterable[tuple[int, int]], *, trimmed: bool) -> float:
        """Operations of a prefill, given each prompt's tokens and how many of them are reused.

        Those of matrix products and of attention to what a token may see; the output head runs once a prompt.

        Args:
            trimmed: the last layer's feed-forward part runs once a prompt as well, as in our stages.
        """
        total = 0.0
        feed_forward = 2.0 * self.hidden * 3 * self.intermediate
        projections = self.head_dim * (2 * self.heads + 2 * self.key_heads)
        of_token = 2.0 * self.layers * self.hidden * (projections + 3 * self.intermediate)
        for tokens, reused in prompts:
            seen = (tokens * (tokens + 1) - reused * (reused + 1)) / 2
            total += of_token * (tokens - reused) + 4.0 * self.layers * self.heads * self.head_dim * seen
            total += 2.0 * self.hidden * self.vocabulary
            total -= feed_forward * (tokens - reused - 1) if trimmed else 0.0
        return total


SHAPES = {
    "tiny": Shape(4, 64, 4, 2, 16, 128, 512),
    "1b": Shape(16, 2048, 32, 8, 64, 8192, 128_256, tied=True),
    "3b": Shape(28, 3072, 24, 8, 128, 8192, 128_256, tied=True),
    "8b": Shape(32, 4096, 32, 8, 128, 14_336, 128_256),
}
"""``tiny`` is for machines without a GPU; the others are those of Llama 3."""


def write_model(directory: Path, shape: Shape, device: str) -> Path:
    """Write a model of this shape, made in bfloat16 on ``device``."""
    config = LlamaConfig(
        num_hidden_layers=shape.layers,
        hidden_size=shape.hidden,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_heads,
        head_dim=shape.head_dim,
        intermediate_size=shape.intermediate,
        vocab_size=shape.vocabulary,
        tie_word_embeddings=shape.tied,
        max_position_embeddings=1 << 18,
    )
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(directory)
    return directory

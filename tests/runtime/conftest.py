"""A plain transformers forward to compare with, and prompts with shared prefixes."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

Reference = Callable[[list[int]], torch.Tensor]


@pytest.fixture(scope="session")
def reference(tiny_llama: Path) -> Reference:
    """Log-probabilities of the token after a prompt, from one plain forward in float32."""
    model = AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32).eval()

    @torch.inference_mode()
    def next_logprobs(prompt: list[int]) -> torch.Tensor:
        return model(torch.tensor([prompt])).logits[0, -1].log_softmax(-1)

    return next_logprobs


class PromptMaker:
    """Random prompts; some continue one of a few shared prefixes."""

    def __init__(self, seed: int, vocab: int = 256) -> None:
        self.random = random.Random(seed)
        self.vocab = vocab
        self.prefixes = [self.tokens(self.random.randrange(30, 200)) for _ in range(3)]

    def tokens(self, count: int) -> list[int]:
        return [self.random.randrange(self.vocab) for _ in range(count)]

    def prompt(self, shared: float = 0.5, longest: int = 120) -> list[int]:
        """A prompt that starts with a shared prefix with probability ``shared``."""
        suffix = self.tokens(self.random.randrange(1, longest))
        if self.random.random() >= shared:
            return suffix
        prefix = self.random.choice(self.prefixes)
        return prefix[: self.random.randrange(1, len(prefix) + 1)] + suffix

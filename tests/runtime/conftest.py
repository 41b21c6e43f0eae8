"""A plain transformers forward to compare with, and prompts with shared prefixes."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.support.tiny_models import make_model

Reference = Callable[[list[int]], torch.Tensor]


def plain_forward(directory: Path) -> Reference:
    """Log-probabilities of the token after a prompt, from one plain forward in float32."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()

    @torch.inference_mode()
    def next_logprobs(prompt: list[int]) -> torch.Tensor:
        return model(torch.tensor([prompt])).logits[0, -1].log_softmax(-1)

    return next_logprobs


@pytest.fixture(scope="session")
def reference(tiny_llama: Path) -> Reference:
    return plain_forward(tiny_llama)


@pytest.fixture(scope="session")
def deep_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As ``tiny_llama``, with 8 layers."""
    return make_model(tmp_path_factory.mktemp("deep") / "llama", num_hidden_layers=8)


@pytest.fixture(scope="session")
def deep_reference(deep_llama: Path) -> Reference:
    return plain_forward(deep_llama)


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

"""Random prompts with shared prefixes."""

from __future__ import annotations

import random


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

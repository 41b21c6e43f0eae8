"""The tiny models' tokens, those that a mask leaves, and a matcher that takes its time."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer
from wavepp_worker.model.grammar.matcher import GrammarMatcher

from tests.support.tiny_models import EOS, VOCABULARY
from tests.support.waiting import WAIT_SECONDS


class Tokens:
    """The tokens of a tiny model."""

    def __init__(self, model: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))

    def ids(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def text(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))

    def left(self, mask: bytes) -> set[str]:
        """The texts of the tokens that a mask leaves, that of the end being empty."""
        bits = np.unpackbits(np.frombuffer(mask, np.uint8), count=VOCABULARY, bitorder="little")
        return {"" if token == EOS else self.text([token]) for token in np.flatnonzero(bits).tolist()}


class SlowMatcher(GrammarMatcher):
    """Says what may come next, always the same, once ``go`` is set; the answer is never complete."""

    def __init__(self, mask: bytes) -> None:
        super().__init__(None, None)  # type: ignore[arg-type]
        self.mask, self.asked = mask, 0
        self.accepted: list[int] = []
        self.go = threading.Event()

    def allowed(self) -> bytes:
        self.asked += 1
        assert self.go.wait(WAIT_SECONDS)
        return self.mask

    def accept(self, token: int, aside: bool = False) -> bool:
        self.accepted.append(token)
        return False

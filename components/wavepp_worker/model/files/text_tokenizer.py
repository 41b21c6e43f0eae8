"""Token ids of text, by the model's own tokenizer."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from wavepp_worker.errors import InvalidRequest
from wavepp_worker.model.files.checkpoint import TOKENIZER

MOST_CHARACTERS_PER_TOKEN = 128
"""A text of more, for each token that a prompt may have, is refused unread, as to make a megabyte into tokens takes a
second. The longest token of common vocabularies is one of so many spaces."""


class TextTokenizer:
    """A model's tokenizer, loaded for the first text. Thread-safe."""

    def __init__(self, model_dir: Path, most_tokens: int) -> None:
        """
        Args:
            model_dir: need not have one, as long as nobody gives text.
            most_tokens: of a prompt.
        """
        self._model_dir = model_dir
        self._most_tokens = most_tokens
        self._lock = threading.Lock()
        self._tokenizer: Any = None

    def ids(self, text: str) -> list[int]:
        """The token ids of ``text``, with the special tokens that the model begins with; no chat template.

        Raises:
            InvalidRequest: the model has no tokenizer that can be read, or the text is no valid Unicode, or far too
                long.
        """
        if len(text) > (most := MOST_CHARACTERS_PER_TOKEN * self._most_tokens):
            raise InvalidRequest(
                f"the text has {len(text)} characters, and a prompt at most {self._most_tokens} tokens here, for which "
                f"at most {most} characters are looked at; send a shorter text"
            )
        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = self._load()
            try:
                # Whoever runs the tokens checks their number.
                return list(self._tokenizer(text, verbose=False)["input_ids"])
            except (TypeError, ValueError) as error:
                raise InvalidRequest(
                    f"the text cannot be made into tokens: {error}; give valid Unicode"
                ) from error

    def _load(self) -> Any:
        if not (self._model_dir / TOKENIZER).is_file():
            raise InvalidRequest(
                f"the prompt is text, but {self._model_dir} has no {TOKENIZER}; give token ids, or save the model's "
                "tokenizer there in its fast form"
            )
        # Imported late, as prompts of token ids do without.
        from transformers import AutoTokenizer

        try:
            return AutoTokenizer.from_pretrained(self._model_dir)
        except Exception as error:  # whatever a foreign file makes a tokenizer class raise
            raise InvalidRequest(
                f"the prompt is text, but the tokenizer of {self._model_dir} cannot be read "
                f"({' '.join(str(error).split()) or type(error).__name__}); give token ids, or save it anew"
            ) from error

"""Stop strings: text is held back while it may still turn into one.

Dynamo's frontend looks for stop strings too, but it has by then sent on the tokens a stop string began in. So
for requests that have some, the worker makes the text itself and the frontend passes it through.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from wavepp_worker import token_ids
from wavepp_worker.dynamo.answer_text import CONTEXT_TOKENS, AnswerText
from wavepp_worker.dynamo_version import dynamo_is_at_least

_FIRST_TO_SAY_REST = (1, 6)


def load_tokenizer(model: Path) -> Tokenizer:
    """The model directory's fast tokenizer."""
    return Tokenizer.from_file(str(model / "tokenizer.json"))


@dataclass(frozen=True)
class Piece:
    """Text that is safe to show, and whether a stop string ended the answer."""

    text: str
    stopped: bool


class StopText:
    """Turns one answer's tokens into text that ends before the first stop string."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop_strings: Sequence[str],
        *,
        prompt: bytes = b"",
        keep_stop_string: bool = False,
        skip_special: bool = True,
        min_tokens: int = 0,
        says_rest: bool | None = None,
    ) -> None:
        """Start an answer.

        Args:
            tokenizer: decodes the tokens.
            stop_strings: what to end before; not empty, no empty ones.
            prompt: packed token ids before the answer; some decoders need their end, to know
                whether the answer's first word starts with a space.
            keep_stop_string: whether to show the stop string itself.
            skip_special: whether special tokens have no text.
            min_tokens: the text of so many first tokens is shown without a look.
            says_rest: whether an answer ends with the text of bytes that are no whole character; default: as the
                Dynamo that is installed has it.
        """
        self._tokenizer = tokenizer
        context = token_ids.unpack(prompt)[-CONTEXT_TOKENS:].tolist()
        self._text = AnswerText(tokenizer, context, skip_special=skip_special)
        self._stops = tuple(stop_strings)
        self._keep = keep_stop_string
        self._unlooked = min_tokens
        self._says_rest = dynamo_is_at_least(*_FIRST_TO_SAY_REST) if says_rest is None else says_rest
        self._held = ""

    def add(self, token: int, *, shown: bool = True) -> Piece:
        """Take the next token; returns the text that can be shown now.

        Args:
            token: its id.
            shown: False for a token that ends the answer and has no text.
        """
        new = self._text.add(token) if shown else ""
        if self._unlooked > 0:
            self._unlooked -= 1
            return Piece(new, False)
        return self._looked_at(new)

    def finish(self) -> Piece:
        """The answer ended otherwise: the text still held back, and that of its last bytes."""
        piece = self._looked_at(self._text.rest()) if self._says_rest else Piece("", False)
        text, self._held = self._held, ""
        return Piece(piece.text + text, piece.stopped)

    def token_text(self, token: int) -> str:
        """One token's own text, for logprobs."""
        return self._tokenizer.decode([token], skip_special_tokens=False)

    def _looked_at(self, new: str) -> Piece:
        self._held += new
        found = self._first_stop()
        if found is not None:
            text = self._held[: found[1] if self._keep else found[0]]
            self._held = ""
            return Piece(text, True)
        keep = self._possible_start()
        text, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return Piece(text, False)

    def _first_stop(self) -> tuple[int, int] | None:
        spans = [(self._held.find(stop), len(stop)) for stop in self._stops]
        found = [(start, start + length) for start, length in spans if start >= 0]
        return min(found, default=None)

    def _possible_start(self) -> int:
        """Length of the longest end of the held text that some stop string begins with."""
        longest = max(map(len, self._stops)) - 1
        for length in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-length:]) for stop in self._stops):
                return length
        return 0

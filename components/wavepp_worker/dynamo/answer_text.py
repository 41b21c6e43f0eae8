"""An answer's tokens as text, the way Dynamo's frontend makes it of them.

An answer has one text, whether the worker or the frontend makes it. So this decides as the frontend does where the
prompt ends within a character, or with one that could not be read: what has text of its own is decided by lengths,
and never by whether the text before is the same as without the new token.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer

CONTEXT_TOKENS = 5
"""Prompt tokens a decoder is shown, as many as the frontend's own detokeniser takes."""

_UNREAD = "\N{REPLACEMENT CHARACTER}".encode()
"""What bytes have for a text that are no whole character, or not yet."""


class AnswerText:
    """Takes one answer's tokens, one by one, and says what each adds to the text."""

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], *, skip_special: bool) -> None:
        """Start an answer.

        Args:
            tokenizer: decodes the tokens.
            prompt: token ids before the answer, the last of them at least; some decoders need them, to know whether
                the answer's first word starts with a space.
            skip_special: whether special tokens have no text.
        """
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._ids = list(prompt[-CONTEXT_TOKENS:])
        self._told = len(self._ids)
        self._told_text = self._decode(self._ids)

    def add(self, token: int) -> str:
        """The text that this token completes; none while a character lacks bytes."""
        self._ids.append(token)
        text = self._decode(self._ids)
        if len(text) <= len(self._told_text) or text.endswith(_UNREAD):
            return ""
        told, new = self._told_text, self._ids[self._told :]
        self._ids, self._told, self._told_text = new, len(new), self._decode(new)
        try:
            return text[len(told) :].decode()
        except UnicodeDecodeError:
            # The new bytes left none of those before readable, in whose text is now no place to begin at; the
            # frontend fails here.
            return self._told_text.decode()

    def rest(self) -> str:
        """The text of the bytes at the end that are no whole character."""
        return self._decode(self._ids)[len(self._told_text) :].decode(errors="replace")

    def _decode(self, ids: Sequence[int]) -> bytes:
        """In UTF-8, as the frontend counts bytes."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=self._skip_special).encode()

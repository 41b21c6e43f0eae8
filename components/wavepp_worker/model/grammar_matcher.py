"""How far an answer has come in what it must match."""

from __future__ import annotations

from typing import Any

from wavepp_worker.errors import WaveppError

_NO_TEXT = (
    "no text at all goes on to match the grammar; give what refers to itself another way to end, or widen it"
)


class GrammarMatcher:
    """One answer's place in its grammar. Not thread-safe; what takes long lets other threads run."""

    def __init__(self, matcher: Any) -> None:
        """``matcher``: an ``LLMatcher`` at the beginning of the answer."""
        self._matcher = matcher

    def fresh(self) -> GrammarMatcher:
        """Another one at this place; what happens to one does not change the other."""
        return GrammarMatcher(self._matcher.deep_copy())

    def allowed(self) -> bytes:
        """A bit for each token that may come next, that of token 0 lowest.

        Raises:
            WaveppError: none may, or the grammar is too complex at this place.
        """
        bits = bytes(self._matcher.compute_bitmask())
        self._check()
        if not any(bits):
            raise WaveppError(_NO_TEXT)
        return bits

    def accept(self, token: int) -> bool:
        """Take the next token; whether the answer is complete, so that nothing can follow.

        Raises:
            WaveppError: it may not come next, or the grammar is too complex at this place.
        """
        self._matcher.consume_token(token)
        self._check()
        return bool(self._matcher.is_stopped())

    def _check(self) -> None:
        if self._matcher.is_error():
            text = str(self._matcher.get_error()).strip()
            if "NoExtensionBias" in text:
                raise WaveppError(_NO_TEXT)
            raise WaveppError(
                f"the grammar cannot be followed: {text.splitlines()[0][:200] if text else '?'}"
            )

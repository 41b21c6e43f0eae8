"""How far an answer has come in what it must match."""

from __future__ import annotations

import threading
from typing import Any

from wavepp_worker.errors import WaveppError

_NO_TEXT = (
    "no text at all goes on to match the grammar; give what refers to itself another way to end, or widen it"
)


class Aside:
    """Has matchers take tokens in threads of llguidance's own. Thread-safe.

    Its matchers hold the interpreter's lock while they take a token, but where two or more do at once.
    """

    def __init__(self, idle: Any) -> None:
        """``idle``: a matcher that failed, and so takes nothing."""
        self._idle = idle
        self._own = threading.local()

    def consume(self, matcher: Any, token: int) -> None:
        """Have ``matcher`` take a token."""
        from llguidance import LLExecutor

        own = self._own
        if not hasattr(own, "executor"):
            own.executor, own.idle = LLExecutor(1), self._idle.deep_copy()
        own.executor.consume_token_par([(matcher, token), (own.idle, token)])


class GrammarMatcher:
    """One answer's place in its grammar. Not thread-safe; other threads run while ``allowed`` does."""

    def __init__(self, matcher: Any, aside: Aside) -> None:
        """``matcher``: an ``LLMatcher`` at the beginning of the answer."""
        self._matcher = matcher
        self._aside = aside

    def fresh(self) -> GrammarMatcher:
        """Another one at this place; what happens to one does not change the other."""
        return GrammarMatcher(self._matcher.deep_copy(), self._aside)

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

    def accept(self, token: int, aside: bool = False) -> bool:
        """Take the next token; whether the answer is complete, so that nothing can follow.

        Args:
            aside: let other threads run meanwhile, which takes some 0.1 ms more.

        Raises:
            WaveppError: it may not come next, or the grammar is too complex at this place.
        """
        if aside:
            self._aside.consume(self._matcher, token)
        else:
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

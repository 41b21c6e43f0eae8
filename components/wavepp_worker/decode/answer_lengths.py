"""How many tokens an answer is expected to have: what is set aside for one that begins. Pure."""

from __future__ import annotations

from collections import deque

LATEST = 128
"""Answers that are remembered."""
UNKNOWN = 256
"""Tokens that are set aside as long as few answers have ended."""
FEW = 16
SHARE = 0.9
"""Of the latest answers that what is set aside would have been enough for."""


class AnswerLengths:
    """The lengths of the latest answers.

    What is set aside for a request need not be right: who needs more gets it while it runs. Too little has
    answers preempted, and too much takes room in which others could run.
    """

    def __init__(self) -> None:
        self._latest: deque[int] = deque(maxlen=LATEST)

    def ended(self, tokens: int, *, cut: bool = False) -> None:
        """An answer has ended: by itself, or ``cut`` where it may have no more, which says that it is no shorter."""
        self._latest.append(max(tokens, self.expected()) if cut else tokens)

    def expected(self) -> int:
        """Tokens, at least 1."""
        if not self._latest:
            return UNKNOWN
        enough = sorted(self._latest)[int(SHARE * (len(self._latest) - 1))]
        return max(1, enough, UNKNOWN if len(self._latest) < FEW else 0)

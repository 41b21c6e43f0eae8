"""How long the sentences are that a queue keeps. Pure."""

from __future__ import annotations

MOST_CHARACTERS = 500
"""Of a sentence in a state or a header: it may quote a job, and what says why that is none is to fit where that did."""
_LEFT_OUT = " ... "


def shortened(sentence: str) -> str:
    """A sentence that is too long without its middle: what is wrong stands at its beginning, what to do at its end."""
    if len(sentence) <= MOST_CHARACTERS:
        return sentence
    kept = MOST_CHARACTERS - len(_LEFT_OUT)
    return sentence[: kept - kept // 2] + _LEFT_OUT + sentence[-(kept // 2) :]

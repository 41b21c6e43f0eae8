"""Amounts as sentences have them. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def duration(seconds: float) -> str:
    """``40 ms`` or ``3.2 s``."""
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * max(0.0, seconds):.0f} ms"


def tokens(count: int) -> str:
    """``1 token`` or ``1,024 tokens``."""
    return f"{count:,} token{'' if count == 1 else 's'}"


def requests(count: int) -> str:
    """``1 request`` or ``3 requests``."""
    return f"{count:,} request{'' if count == 1 else 's'}"


def listed(noun: str, numbers: Sequence[int]) -> str:
    """``rank 1`` or ``ranks 0, 1 and 3``; the bare plural for none."""
    words = [str(number) for number in numbers]
    if len(words) < 2:
        return f"{noun} {words[0]}" if words else f"{noun}s"
    return f"{noun}s {', '.join(words[:-1])} and {words[-1]}"

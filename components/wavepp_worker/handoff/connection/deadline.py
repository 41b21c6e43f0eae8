"""``asyncio.timeout`` for every supported Python.

``asyncio.wait_for`` is not used in the hand-off: before Python 3.12 it loses a cancellation that arrives in
the same moment as the result, and a cancelled transfer would go on.
"""

from __future__ import annotations

import sys

if sys.version_info >= (3, 11):
    from asyncio import timeout
else:
    from async_timeout import timeout  # type: ignore[import-not-found]

__all__ = ["LONGEST_WAIT_SECONDS", "bounded", "timeout"]

LONGEST_WAIT_SECONDS = 86400.0
"""No peer is waited for longer, whatever it asks for."""


def bounded(seconds: float) -> float:
    """What a peer says it waits, made sure to be a number from 0 to ``LONGEST_WAIT_SECONDS``."""
    # In this order: ``max`` of 0 and a number that is none is 0.
    return min(max(0.0, seconds), LONGEST_WAIT_SECONDS)

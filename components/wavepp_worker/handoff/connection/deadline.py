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

__all__ = ["timeout"]

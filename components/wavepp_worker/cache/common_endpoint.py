"""The endpoint that all windows of a rank can resume at."""

from __future__ import annotations

from collections.abc import Callable, Sequence


def common_endpoint(usable: Sequence[Callable[[int], int]], limit: int) -> int:
    """The largest ``n <= limit`` with ``usable[i](n) == n`` for all windows.

    Each function returns the largest usable number of blocks not above its argument; 0 is always usable.
    """
    end, agreeing, window = limit, 0, 0
    while end and agreeing < len(usable):
        lower = usable[window](end)
        agreeing = agreeing + 1 if lower == end else 1
        end, window = lower, (window + 1) % len(usable)
    return end

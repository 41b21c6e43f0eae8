"""The slope of a noisy line. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

MOST_POINTS = 200


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Theil and Sen's: the median slope of all pairs, which outliers and steps hardly move.

    Args:
        points: at least two, with different x.
    """
    few = points[:: max(1, len(points) // MOST_POINTS)]
    pairs = ((a, b) for index, a in enumerate(few) for b in few[index + 1 :] if a[0] != b[0])
    return statistics.median((b[1] - a[1]) / (b[0] - a[0]) for a, b in pairs)

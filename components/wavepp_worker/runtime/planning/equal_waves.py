"""Into how many waves work is cut where all are to take the same. Pure."""

from __future__ import annotations

import math

ROUNDING_SHARE = 0.05
"""Share of a wave that waves may be longer before one more is made of what waits."""


def equal_waves(work: float, wave: float) -> int:
    """How many equal waves, of about ``wave``, to make of ``work``, both in the same unit."""
    return max(1, math.ceil(work / wave - ROUNDING_SHARE))

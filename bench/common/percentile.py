"""The percentile that all tables show."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def p95(values: Sequence[float]) -> float:
    """The smallest of ``values`` that at least 95 % of them do not exceed (nearest rank)."""
    return float(np.quantile(values, 0.95, method="inverted_cdf"))

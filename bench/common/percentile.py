"""The percentiles that all tables show."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest of ``values`` that at least ``share`` of them do not exceed (nearest rank)."""
    return float(np.quantile(values, share, method="inverted_cdf"))


def p95(values: Sequence[float]) -> float:
    """The smallest of ``values`` that at least 95 % of them do not exceed."""
    return percentile(values, 0.95)

"""How long a peer is waited for, whatever number it sends."""

from __future__ import annotations

import math

import pytest
from wavepp_worker.handoff.connection.deadline import LONGEST_WAIT_SECONDS, bounded


@pytest.mark.parametrize(
    ("asked", "waited"),
    [
        (5.0, 5.0),
        (0.0, 0.0),
        (-1.0, 0.0),
        (math.nan, 0.0),
        (math.inf, LONGEST_WAIT_SECONDS),
        (-math.inf, 0.0),
        (1e300, LONGEST_WAIT_SECONDS),
    ],
)
def test_a_wait_is_a_number_with_a_bound(asked: float, waited: float) -> None:
    assert bounded(asked) == waited

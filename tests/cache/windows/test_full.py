"""A prefix tree answers by bisection."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from wavepp_worker.cache.windows.full import leading


@given(st.integers(0, 70), st.integers(0, 70))
def test_leading_counts_a_leading_part(count: int, holding: int) -> None:
    assert leading(count, lambda at: at < holding) == min(count, holding)

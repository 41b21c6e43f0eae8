from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wavepp_worker.errors import ConfigError
from wavepp_worker.runtime.planning.wave_cost import WaveCost


@given(
    start=st.integers(0, 1_000_000),
    length=st.integers(1, 65536),
    c=st.sampled_from([0.0, 3.4e-11, 2e-10, 1e-3, 1e3]),
)
def test_a_time_limit_is_the_inverse_of_work(start: int, length: int, c: float) -> None:
    cost = WaveCost(0.008, 18.6e-6, c)
    assert cost.tokens_within(cost.work(start, length), start) == length
    assert cost.tokens_within(cost.work(start, length) * (1 - 1e-4), start) < length


def test_work_is_the_sum_over_tokens() -> None:
    cost = WaveCost(a=4.0, b=1.0, c=0.001)
    by_token = sum(cost.b + cost.c * (position + 1) for position in range(40, 100))
    assert cost.work(40, 60) == pytest.approx(by_token)


@pytest.mark.parametrize(
    "wrong", [(-1.0, 1.0, 0.0), (0.0, 0.0, 0.0), (0.0, 1.0, -1.0), (math.nan, 1.0, 0.0), (0.0, 1.0, math.inf)]
)
def test_what_no_device_costs_is_refused(wrong: tuple[float, float, float]) -> None:
    with pytest.raises(ConfigError, match="change the cost model"):
        WaveCost(*wrong)

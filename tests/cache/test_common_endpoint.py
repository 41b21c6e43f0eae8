"""The endpoint that several windows agree on, against trying all of them."""

from __future__ import annotations

from functools import partial

from hypothesis import given
from hypothesis import strategies as st
from wavepp_worker.cache.common_endpoint import common_endpoint


@given(st.lists(st.sets(st.integers(1, 12)), min_size=1, max_size=4), st.integers(0, 12))
def test_windows_agree_on_the_largest_endpoint_all_can_use(usable: list[set[int]], limit: int) -> None:
    def latest(ends: set[int], below: int) -> int:
        return max((end for end in ends if end <= below), default=0)

    expected = max(end for end in range(limit + 1) if all(end in ends or end == 0 for ends in usable))
    assert common_endpoint([partial(latest, ends) for ends in usable], limit) == expected

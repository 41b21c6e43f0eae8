"""What counts as growth of memory over a run's parts."""

from __future__ import annotations

import os

import pytest

from bench.host_cost import MOST_GROWTH, PARTS, SAMPLES, growth, sampled


def test_a_part_at_a_peak_is_no_growth() -> None:
    for peak in range(PARTS):
        parts = [242.0] * PARTS
        parts[peak] = 258.5
        assert growth(parts) == 0


def test_what_grows_part_by_part_is_growth_and_what_only_starts_is_none() -> None:
    assert growth([200.0 + 4 * part for part in range(PARTS)]) > MOST_GROWTH
    assert growth([100.0, 180.0, *[200.0] * (PARTS - 2)]) == 0


@pytest.mark.parametrize("count", [1, SAMPLES, 1000])
def test_memory_is_looked_at_on_the_way(count: int) -> None:
    sizes: list[list[int]] = []
    asked = [bytes([number % 256]) for number in range(count)]
    assert list(sampled(asked, count, [os.getpid(), os.getpid()], sizes)) == asked
    assert min(count, SAMPLES) <= len(sizes) <= SAMPLES + 1
    assert all(size > 0 for each in sizes for size in each)

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wavepp_worker.errors import WaveppError
from wavepp_worker.model.kv.block_regions import BlockRegions

POOLS = st.lists(
    st.tuples(st.integers(0, 2**48), st.integers(1, 2**20), st.integers(0, 2), st.integers(1, 40)),
    max_size=6,
)


@given(POOLS, st.integers(0, 5), st.randoms(use_true_random=False))
def test_a_block_is_where_as_many_before_it_end(
    pools: list[tuple[int, int, int, int]], columns: int, random: Random
) -> None:
    regions = BlockRegions.of(pools)
    fewest = min((blocks for *_, blocks in pools), default=1)
    table = np.array([[random.randint(-1, fewest - 1) for _ in range(columns)] for _ in range(3)], np.int64)
    found = regions.addresses(table.reshape(3, columns))
    assert found.shape == (columns, len(regions)) == (columns, len(pools))
    for column in range(columns):
        for pool, (first, size, window, _) in enumerate(pools):
            block = int(table[window, column])
            assert found[column, pool] == (first + block * size if block >= 0 else 0)


def test_a_block_beyond_a_pool_is_refused() -> None:
    regions = BlockRegions.of([(4096, 64, 0, 8), (8192, 64, 1, 3)])
    with pytest.raises(WaveppError, match="block 3 does not exist; this rank has 3"):
        regions.addresses(np.array([[3, 1], [2, 3]]))

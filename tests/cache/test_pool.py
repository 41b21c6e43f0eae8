"""A slot is free or handed out once."""

from __future__ import annotations

import pytest
from wavepp_worker.cache.pool import BlockPool


def test_slots_are_handed_out_once_until_they_come_back() -> None:
    pool = BlockPool(3)
    taken = pool.take(2)
    assert (sorted(taken), pool.free, pool.in_use()) == ([0, 1], 1, [0, 1])
    pool.drop_owner(taken[0])
    with pytest.raises(ValueError, match="free already"):
        pool.drop_owner(taken[0])
    with pytest.raises(ValueError, match="asked for 3 blocks, 2 of 3 are free"):
        pool.take(3)
    assert pool.take(0) == []
    pool.check()


def test_named_slots_are_taken_only_if_they_are_free() -> None:
    pool = BlockPool(4)
    pool.take_these([3, 1])
    assert pool.in_use() == [1, 3]
    assert pool.take(2) == [0, 2]
    for slot in (1, 4):
        with pytest.raises(ValueError, match=f"block {slot} of 4 cannot be taken"):
            pool.take_these([slot])

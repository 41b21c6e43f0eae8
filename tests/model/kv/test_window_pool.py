"""Blocks of pools of windows, of 16 tokens each."""

from __future__ import annotations

import pytest
from wavepp_worker.model.kv.window_pool import most_held, pool_bounds, tier_bytes, window_pool, window_tier


@pytest.mark.parametrize(
    ("blocks", "pool"),
    [
        # Not enough for a request alone: a window to resume from, one to hold with one block more, and the wave.
        (8 + 9 + 36 - 1, (52, None)),
        (8 + 9 + 36, (53, 36)),
        (80, (53, 36)),
        # Half of the others', as windows of all requests are more.
        (300, (150, 36)),
        # Windows of four requests and one to resume from, the wave, and a quarter for what can be reused.
        (1000, (5 * 9 + 36 + 250, 36)),
    ],
)
def test_a_pool_is_of_what_can_be_held_at_once_and_a_share_of_what_can_be_reused(
    blocks: int, pool: tuple[int, int | None]
) -> None:
    assert window_pool(blocks, 16, 128, requests=4, wave_tokens=512) == pool
    for share, besides in pool_bounds(16, 128, requests=4, wave_tokens=512):
        assert pool[0] <= blocks / share + besides


def test_a_wave_may_begin_and_end_each_of_its_chunks_within_a_block() -> None:
    assert most_held(16, 1, requests=3, wave_tokens=40) == 4 * 2 + 2 + 3


@pytest.mark.parametrize(
    ("blocks", "tier"),
    [(0, 0), (5, 5), (9, 9), (10, 9), (36, 9), (40, 10), (1000, 250)],
)
def test_a_tier_holds_a_share_and_a_window_at_least(blocks: int, tier: int) -> None:
    assert window_tier(blocks, 16, 128) == tier
    # Of 7 bytes a token 5 are in layers with windows.
    assert tier_bytes(7, {128: 5}, blocks, 16) == 16 * (2 * blocks + 5 * tier)

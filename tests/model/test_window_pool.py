"""Blocks of pools of windows, of 16 tokens each."""

from __future__ import annotations

import pytest
from wavepp_worker.model.window_pool import most_held, window_pool


@pytest.mark.parametrize(
    ("blocks", "pool"),
    [
        # Not enough for a request alone: a window to resume from, one to hold with one block more, and the wave.
        (8 + 9 + 36 - 1, (52, None)),
        (8 + 9 + 36, (53, 36)),
        (80, (80, 36)),
        # Windows of four requests and one to resume from, the wave, and a quarter for what can be reused.
        (1000, (5 * 9 + 36 + 250, 36)),
    ],
)
def test_a_pool_is_of_what_can_be_held_at_once_and_a_share_of_what_can_be_reused(
    blocks: int, pool: tuple[int, int | None]
) -> None:
    assert window_pool(blocks, 16, 128, requests=4, wave_tokens=512) == pool


def test_a_wave_may_begin_and_end_each_of_its_chunks_within_a_block() -> None:
    assert most_held(16, 1, requests=3, wave_tokens=40) == 4 * 2 + 2 + 3

"""What is left of a wave, in blocks of 16 tokens; time budgets at 1 second a token."""

from __future__ import annotations

import pytest
from wavepp_worker.runtime.planning.planner import Lane
from wavepp_worker.runtime.planning.wave_budget import TimeBudget, TokenBudget, whole_blocks
from wavepp_worker.runtime.planning.wave_cost import WaveCost

from tests.support.planning import BLOCK_SIZE


def seconds(tokens: int, limit: float, *, passing: bool = False) -> TimeBudget:
    return TimeBudget(WaveCost(9.0, 1.0, 0.0), BLOCK_SIZE, tokens, limit, passing=passing)


@pytest.mark.parametrize(
    ("begin", "end", "fits", "chunk"),
    [
        (0, 30, 30, 30),
        (0, 30, 29, 16),
        (5, 90, 16, 11),
        (5, 90, 60, 59),
        (0, 30, 15, 0),
        (0, 7, 7, 7),
        (0, 7, 6, 0),
    ],
)
def test_a_chunk_ends_its_prompt_or_a_block_of_it(begin: int, end: int, fits: int, chunk: int) -> None:
    assert whole_blocks(Lane("r", begin, end), fits, BLOCK_SIZE) == chunk


def test_a_budget_of_tokens_is_spent_by_chunks() -> None:
    budget = TokenBudget(64, BLOCK_SIZE)
    assert budget.chunk(Lane("r", 0, 100)) == 64
    budget.spend(0, 40)
    assert (budget.tokens, budget.chunk(Lane("r", 0, 100))) == (24, 16)
    budget.spend(0, 16)
    assert (budget.chunk(Lane("r", 0, 100)), budget.chunk(Lane("r", 0, 8))) == (0, 8)


def test_chunks_below_the_smallest_are_fragments() -> None:
    budget = TokenBudget(64, BLOCK_SIZE, smallest=32)
    assert budget.fragment(Lane("r", 0, 100), 31)
    assert not budget.fragment(Lane("r", 0, 100), 32)
    assert not TokenBudget(64, BLOCK_SIZE).fragment(Lane("r", 0, 100), 1)


def test_a_budget_of_time_limits_seconds_and_tokens() -> None:
    assert seconds(64, 40.0).chunk(Lane("r", 0, 100)) == 32, "40 seconds are two blocks"
    assert seconds(32, 40.0).chunk(Lane("r", 0, 100)) == 32
    budget = seconds(64, 50.0)
    budget.spend(0, 20)
    assert (budget.tokens, budget.seconds) == (44, 30.0)
    assert budget.chunk(Lane("r", 0, 100)) == 16
    assert seconds(64, 0.0).chunk(Lane("r", 0, 100)) == 0


def test_the_last_tokens_of_a_wave_are_filled_beyond_a_block_boundary() -> None:
    budget = seconds(64, 64.0)
    budget.spend(0, 40)
    assert budget.chunk(Lane("r", 0, 100)) == 24
    budget.spend(0, 10)
    assert budget.chunk(Lane("r", 0, 100)) == 0, "14 are less than a block"


def test_longer_contexts_leave_less_of_a_budget_of_time() -> None:
    cost = WaveCost(0.0, 1.0, 0.1)
    near, far = (TimeBudget(cost, BLOCK_SIZE, 64, 100.0, passing=False) for _ in range(2))
    assert near.chunk(Lane("r", 0, 1000)) > far.chunk(Lane("r", 800, 1800))
    near.spend(0, 10)
    far.spend(800, 10)
    assert near.seconds > far.seconds


def test_with_passing_a_fragment_is_what_saves_its_request_no_wave() -> None:
    budget = seconds(128, 128.0, passing=True)
    assert budget.fragment(Lane("r", 0, 640), 32), "five waves of 128 with it or without"
    assert not budget.fragment(Lane("r", 0, 656), 32), "six without, five with it"
    budget.spend(0, 96)
    assert budget.fragment(Lane("r", 0, 640), 32), "a whole wave counts, not what is left of this one"
    assert not seconds(128, 128.0).fragment(Lane("r", 0, 640), 32)

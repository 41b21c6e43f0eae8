"""Who is admitted first under pressure, over whole schedules: ``World`` holds every admission against the bound."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wavepp_worker.cache.window_spec import WindowSpec

from tests.simulator.told import Told

BLOCK, PREFIX, SUFFIX = 2, 12, 2


def world(prompts: Sequence[tuple[float, Sequence[int]]], blocks: int, bound: int | None, seed: int) -> Told:
    """Two ranks with so many blocks each."""
    window = [WindowSpec("attention", "full", blocks)]
    made = Told(prompts, seed, 2, windows=[window, window], block=BLOCK)
    made.queue.limit = made.setting.limit
    made.priorities = (0,)
    made.order_by(bound)
    return made


def crowd(prefixes: int, requests: int, every: float, seed: int) -> list[tuple[float, list[int]]]:
    """Requests that follow one of the prefixes at random, one after the other."""
    draw = random.Random(seed)
    begun = [[100 * at + token for token in range(PREFIX)] for at in range(prefixes)]
    return [
        (index * every, draw.choice(begun) + [draw.randrange(1000, 9999) for _ in range(SUFFIX)])
        for index in range(requests)
    ]


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    prefixes=st.integers(1, 5),
    every=st.sampled_from((0.0, 0.001, 0.01)),
    blocks=st.integers(8, 30),
    bound=st.sampled_from((0, 14, 20, 50, 200, 10_000)),
)
def test_nobody_is_passed_by_more_than_the_bound_and_all_are_answered(
    seed: int, prefixes: int, every: float, blocks: int, bound: int
) -> None:
    """Promise 9."""
    made = world(crowd(prefixes, 40, every, seed), blocks, bound, seed)
    made.run()
    assert len(made.client.answered) == 40
    assert all(passed <= bound for passed in made.computed_by_others.values())


@pytest.mark.parametrize("bound", [30, 60])
def test_a_stranger_is_served_amid_an_endless_supply_of_requests_that_suit_the_cache(bound: int) -> None:
    """Each of the others computes 2 tokens: before so many of them as the bound allows have come, it is admitted."""
    others = crowd(1, 200, 0.002, 1)
    stranger = (0.1, [7] * (PREFIX + SUFFIX))
    at = sum(when <= stranger[0] for when, _ in others)
    made = world([*others[:at], stranger, *others[at:]], 10, bound, 3)
    made.run()
    passed = made.computed_by_others[f"r{at}"]
    assert 0 < passed <= bound, "it was passed, and no more than it may be"
    assert len(made.client.answered) == 201


def test_the_same_requests_compute_less_in_this_order_than_first_come_first_served() -> None:
    def computed(bound: int | None) -> int:
        made = world(crowd(4, 60, 0.0, 5), 24, bound, 5)
        made.run()
        return sum(
            made.client.requests[name].prompt_tokens - made.starts(name)[0] for name in made.client.requests
        )

    assert computed(10_000) < 0.7 * computed(None)


def test_without_pressure_requests_are_admitted_first_come_first_served() -> None:
    made = world(crowd(3, 30, 0.0, 2), 30 * (PREFIX + SUFFIX) // BLOCK, 10_000, 2)
    made.run()
    assert not made.computed_by_others

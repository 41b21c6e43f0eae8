"""The least that prompts can compute and take, against counts and closed forms by hand."""

from __future__ import annotations

import pytest
from wavepp_worker.model.timed.timed_model import Link, TimedModel

from bench.bursts.bounds import bound_seconds, least_computed
from bench.common.prompts import Prompts

BLOCK = 16


def timed(wave_seconds: float) -> TimedModel:
    """Of four stages, each takes ``2 * wave_seconds`` for a wave and a millisecond for a token."""
    nothing = Link(latency=0.0, bandwidth=1e18)
    return TimedModel(
        name="eight equal layers",
        layers=8,
        vocabulary=1000,
        context_length=100_000,
        wave_seconds=wave_seconds,
        token_seconds=0.0005,
        context_seconds=0.0,
        activation_bytes=1.0,
        kv_bytes=1.0,
        hop=nothing,
        to_host=nothing,
        from_host=nothing,
    )


def test_every_distinct_block_counts_once() -> None:
    new = Prompts(0, 1000)
    prefix, other = new.tokens(64), new.tokens(64)
    prompts = [prefix + new.tokens(20), prefix + new.tokens(5), other]
    computed = least_computed(prompts, BLOCK)
    assert computed.tokens == 84 + 5 + 64
    assert computed.context == sum(range(1, 85)) + sum(range(65, 70)) + sum(range(1, 65))


def test_a_prompt_computes_its_last_token_and_what_is_less_than_a_block() -> None:
    new = Prompts(0, 1000)
    whole, ragged = new.tokens(64), new.tokens(70)
    assert least_computed([whole, whole], BLOCK).tokens == 64 + 16
    assert least_computed([ragged, ragged], BLOCK).tokens == 70 + 6


def test_a_block_is_reused_only_behind_the_same_tokens() -> None:
    new = Prompts(0, 1000)
    first, second, shared = new.tokens(16), new.tokens(16), new.tokens(16)
    assert least_computed([first + shared, second + shared], BLOCK).tokens == 64


def test_a_burst_takes_what_its_union_takes_in_the_best_number_of_waves() -> None:
    """``u`` seconds of work in ``k`` waves through 4 stages take ``(k + 3) * (a + u/k)``."""
    new = Prompts(0, 1000)
    prefix = new.tokens(1024)
    sessions = [[prefix + new.tokens(64)] for _ in range(4)]
    union = 1024 + 4 * 64
    best = min((k + 3) * (0.008 + 0.001 * union / k) for k in range(1, 100))
    assert bound_seconds(timed(0.004), 4, sessions, BLOCK) == pytest.approx(best)


def test_sessions_take_at_least_their_turns_one_after_the_other() -> None:
    new = Prompts(0, 1000)
    first = new.tokens(64)
    turns = [first, first + new.tokens(32)]
    one_after_the_other = sum(
        min((k + 3) * (0.008 + 0.001 * tokens / k) for k in range(1, 100)) for tokens in (64, 32)
    )
    assert bound_seconds(timed(0.004), 4, [turns, turns], BLOCK) == pytest.approx(one_after_the_other)

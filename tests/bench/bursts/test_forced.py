"""What waiting for one another forces, against closed forms by hand."""

from __future__ import annotations

import pytest

from bench.bursts.bounds import bound_seconds
from bench.bursts.forced import forced_seconds, waves_in_a_row
from bench.common.prompts import Prompts
from tests.bench.bursts.test_bounds import BLOCK, timed

A, TOKEN = 0.008, 0.001
"""Seconds of a wave by itself and of a token, on each of four stages of ``timed(0.004)``."""


def test_who_reads_goes_in_a_later_wave_than_who_computes() -> None:
    new = Prompts(0, 1000)
    first, other = new.tokens(64), new.tokens(64)
    assert waves_in_a_row([first, other], BLOCK) == 1
    assert waves_in_a_row([first + new.tokens(8), first + new.tokens(8), other], BLOCK) == 2
    assert waves_in_a_row([first, first], BLOCK) == 2, "each computes its last token"
    tree = [
        first + document + new.tokens(8) for document in (new.tokens(32), new.tokens(32)) for _ in range(3)
    ]
    assert waves_in_a_row(tree, BLOCK) == 3, "the first document goes on in the first wave, the other follows"
    chain = [first + other, first + other + new.tokens(32), first + new.tokens(8)]
    assert waves_in_a_row(chain, BLOCK) == 2, "the longest one computes what both others read"


def test_a_small_burst_on_one_stage_takes_two_waves_where_nobody_rides() -> None:
    new = Prompts(0, 1000)
    prefix = new.tokens(64)
    sessions = [[prefix + new.tokens(32)] for _ in range(4)]
    work = 4 * TOKEN * (64 + 4 * 32)
    assert bound_seconds(timed(0.004), 1, sessions, BLOCK) == pytest.approx(4 * A + work)
    assert forced_seconds(timed(0.004), 1, sessions, BLOCK, riders=False) == pytest.approx(2 * 4 * A + work)
    assert forced_seconds(timed(0.004), 1, sessions, BLOCK, riders=True) == pytest.approx(4 * A + work)


def test_agents_wait_for_the_whole_pipeline_with_each_of_their_turns() -> None:
    """``n`` turns of ``v`` seconds in ``k`` waves on four stages: a turn takes ``4 * (a + v * n / k)`` in the mean."""
    new = Prompts(0, 1000)
    system, turns, agents, wave = new.tokens(128), 8, 16, 0.016
    sessions = []
    for _ in range(agents):
        prompts = [system + new.tokens(16)]
        while len(prompts) < turns:
            prompts.append(prompts[-1] + new.tokens(16))
        sessions.append(prompts)
    work, count = TOKEN * (128 + agents * turns * 16), agents * turns
    bound = bound_seconds(timed(0.008), 4, sessions, BLOCK)
    for riders in (False, True):
        # With the prefix of all, the others wait for a wave more only if they may not be in it.
        before = (wave * (not riders) + TOKEN * 128) * (agents - 1) / agents
        expected = min(
            max((k + 3) * (wave + work / k), before + 4 * turns * (wave + TOKEN * 16 * count / k))
            for k in range(8, 200)
        )
        forced = forced_seconds(timed(0.008), 4, sessions, BLOCK, riders=riders)
        assert forced == pytest.approx(expected)
        assert expected > 1.01 * bound


def test_what_shares_nothing_is_forced_to_nothing() -> None:
    new = Prompts(0, 1000)
    sessions = [[new.tokens(640)] for _ in range(4)]
    bound = bound_seconds(timed(0.004), 4, sessions, BLOCK)
    assert forced_seconds(timed(0.004), 4, sessions, BLOCK, riders=False) == bound

"""Requests of all manners, drawn from a seed."""

from __future__ import annotations

from itertools import islice

from tests.chaos.workload import Case, Manner, draw_asks, draw_prompts

CASES = [Case(prompt, "abcdefghijkl") for prompt in draw_prompts(1, 50, 1000)]


def test_prompts_are_short_long_and_shared() -> None:
    prompts = [case.prompt for case in CASES]
    assert min(map(len, prompts)) < 64
    assert 333 < max(map(len, prompts)) <= 1000
    assert len({tuple(prompt) for prompt in prompts}) == len(prompts)
    starts = [tuple(prompt[:16]) for prompt in prompts if len(prompt) > 16]
    assert len(set(starts)) < len(starts)
    assert draw_prompts(1, 50, 1000) == prompts != draw_prompts(2, 50, 1000)


def test_requests_come_at_the_rate_asked_for_in_all_manners() -> None:
    asks = list(islice(draw_asks(7, 5.0, CASES), 2000))
    assert asks == list(islice(draw_asks(7, 5.0, CASES), 2000))
    assert 360 < asks[-1].at < 440
    assert {ask.manner for ask in asks} == set(Manner)
    for ask in asks:
        assert len(ask.text) == (0 if ask.manner is Manner.INVALID else ask.body["max_tokens"])
        assert (ask.patience > 0) == (ask.manner is Manner.ABORTED)


def test_salts_are_all_different_and_change_nothing_else() -> None:
    plain, salted = (list(islice(draw_asks(7, 5.0, CASES, share), 2000)) for share in (0.0, 0.5))
    salts = [ask.body.pop("nvext")["cache_salt"] for ask in salted if "nvext" in ask.body]
    assert salted == plain
    assert 800 < len(set(salts)) == len(salts) < 1100

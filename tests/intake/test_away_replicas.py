from __future__ import annotations

from wavepp_worker.intake.away_replicas import AWAY_SECONDS, AwayReplicas


def test_who_lets_a_job_go_is_away_for_a_while() -> None:
    away = AwayReplicas()
    away.took("a", 0)
    away.let_go("a", sent=1, now=3)
    away.let_go("b", sent=1, now=4)
    assert "a" in away
    away.forget(3 + AWAY_SECONDS - 0.1)
    assert "a" in away
    away.forget(3 + AWAY_SECONDS)
    assert "a" not in away
    assert "b" in away


def test_who_takes_others_meanwhile_is_busy() -> None:
    away = AwayReplicas()
    away.took("a", 2)
    away.let_go("a", sent=1, now=3)
    assert "a" not in away


def test_who_takes_one_is_back() -> None:
    away = AwayReplicas()
    away.let_go("a", sent=1, now=3)
    away.took("a", 4)
    assert "a" not in away


def test_names_that_are_seen_no_more_are_forgotten() -> None:
    away = AwayReplicas()
    for number in range(1000):
        away.took(f"r{number}", number)
        away.let_go(f"s{number}", sent=number - 1, now=number)
        away.forget(number)
    assert len(away._took) <= AWAY_SECONDS
    assert len(away._away) <= AWAY_SECONDS

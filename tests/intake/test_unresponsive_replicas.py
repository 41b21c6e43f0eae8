from __future__ import annotations

from wavepp_worker.intake.unresponsive_replicas import (
    REMEMBERED_SECONDS,
    SHUNNED_SECONDS,
    WAITED_SECONDS,
    UnresponsiveReplicas,
)


def test_who_lets_others_have_a_job_is_shunned_for_a_while() -> None:
    replicas = UnresponsiveReplicas()
    replicas.began("a", 0)
    replicas.passed_over("a", sent=1, now=3)
    replicas.passed_over("b", sent=1, now=4)
    end = 3 + SHUNNED_SECONDS
    assert [replicas.is_unresponsive("a", now) for now in (3, end - 0.1, end)] == [True, True, False]
    assert replicas.is_unresponsive("b", end)
    assert not replicas.is_unresponsive("c", 3)


def test_who_began_one_meanwhile_is_busy() -> None:
    replicas = UnresponsiveReplicas()
    replicas.began("a", 2)
    for other in range(100):
        replicas.began(f"r{other}", 60 + other)
    replicas.passed_over("a", sent=1, now=160)
    assert not replicas.is_unresponsive("a", 160)


def test_a_young_job_that_was_taken_along_says_nothing() -> None:
    replicas = UnresponsiveReplicas()
    replicas.passed_over("a", sent=1, now=1 + WAITED_SECONDS - 0.1)
    assert not replicas.is_unresponsive("a", 2)


def test_who_begins_one_is_back() -> None:
    replicas = UnresponsiveReplicas()
    replicas.passed_over("a", sent=1, now=3)
    replicas.began("a", 4)
    assert not replicas.is_unresponsive("a", 4)


def test_names_that_are_seen_no_more_are_forgotten() -> None:
    replicas = UnresponsiveReplicas()
    for number in range(2000):
        replicas.began(f"r{number}", number)
        replicas.passed_over(f"s{number}", sent=number - 1, now=number)
    assert len(replicas._began) <= REMEMBERED_SECONDS
    assert len(replicas._shunned) <= SHUNNED_SECONDS

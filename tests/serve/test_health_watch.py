from __future__ import annotations

from wavepp_worker.serve.health_watch import UNHEALTHY_SECONDS, HealthWatch, KeepLimits

LIMITS = KeepLimits(start_seconds=100.0, silent_seconds=60.0)


def verdicts(*answers: tuple[float, int]) -> list[str | None]:
    """Of a process started at second 1000, by what it answered when."""
    watch = HealthWatch(LIMITS, 1000.0)
    return [watch.judge(status, 1000.0 + second) for second, status in answers]


def test_until_it_is_ready_it_may_say_nothing_or_that_it_is_not() -> None:
    assert verdicts((1, 0), (70, 0), (80, 503), (99, 503)) == [None] * 4
    (*_, late) = verdicts((1, 0), (101, 503))
    assert late == "is not ready after 101 s (--start-timeout)"


def test_no_answer_counts_as_dead_after_a_while() -> None:
    assert verdicts((1, 200), (2, 0), (61, 0)) == [None] * 3
    (*_, silent) = verdicts((1, 200), (2, 0), (63, 0))
    assert silent == "has not answered a health check for 61 s (--health-timeout)"
    assert verdicts((1, 200), (2, 0), (30, 200), (31, 0), (80, 0)) == [None] * 5, "it was busy for a moment"
    assert verdicts((1, 200), (2, 0), (30, 404), (31, 0), (80, 0)) == [None] * 5, "an answer is an answer"


def test_who_says_that_it_is_not_well_is_believed_soon() -> None:
    assert verdicts((1, 200), (2, 503), (2 + UNHEALTHY_SECONDS, 503)) == [None] * 3
    (*_, sick) = verdicts((1, 200), (2, 503), (8, 503))
    assert sick == "has reported itself unhealthy for 6 s"
    assert verdicts((1, 200), (2, 503), (6, 200), (8, 503)) == [None] * 4

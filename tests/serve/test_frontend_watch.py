"""When a frontend that finds no worker is started anew."""

from __future__ import annotations

from wavepp_worker.serve.frontend_watch import BLIND_SECONDS, FrontendWatch

LONG = int(BLIND_SECONDS) + 1
BLIND = (True, False)


def verdicts(*steps: tuple[bool, bool]) -> list[bool]:
    """One step a second: whether all are ready, and whether the model is listed."""
    watch = FrontendWatch()
    return [watch.blind(ready, listed, float(now)) for now, (ready, listed) in enumerate(steps)]


def test_a_frontend_that_finds_nobody_for_long_is_ended_and_has_as_long_again() -> None:
    assert verdicts(*[BLIND] * LONG) == [False] * (LONG - 1) + [True]
    assert sum(verdicts(*[BLIND] * (2 * LONG))) == 2


def test_it_is_not_while_somebody_is_missing_or_all_is_well() -> None:
    assert not any(verdicts(*[(False, False)] * 100))
    assert not any(verdicts(*[(True, True)] * 100))


def test_the_time_begins_when_everybody_is_there_and_again_after_the_model_was_listed() -> None:
    almost = [BLIND] * (LONG - 1)
    assert not any(verdicts(*almost, (True, True), *almost, (False, False), *almost))

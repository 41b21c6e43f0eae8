from __future__ import annotations

from wavepp_worker.liveness.awake_clock import AwakeClock


def test_time_in_which_the_process_did_not_run_does_not_count() -> None:
    now = 100.0
    clock = AwakeClock(lambda: now, longest=1.0)
    assert clock.read() == 0.0
    now += 0.5
    assert clock.read() == 0.5
    now += 3600.0
    assert clock.read() == 1.5, "it was stopped, or its machine suspended"
    now += 0.25
    assert clock.read() == 1.75 == clock.seconds

from __future__ import annotations

from wavepp_worker.runtime.planning.equal_waves import equal_waves


def test_one_more_wave_is_made_of_what_would_make_the_others_much_longer() -> None:
    assert [equal_waves(work, 100.0) for work in (100.0, 199.0, 204.0, 206.0, 300.0)] == [1, 2, 2, 3, 3]


def test_little_work_is_one_wave() -> None:
    assert equal_waves(1.0, 100.0) == 1

"""Growth of what processes hold, and what is left over."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from tests.chaos.leaks import (
    LEAST_LIFE_SECONDS,
    SPARE_DESCRIPTORS,
    SPARE_THREADS,
    WARM_UP_SECONDS,
    Held,
    Left,
    grown,
    left_over,
    rss_slopes,
)
from tests.chaos.monitor import shared_memory


def held(descriptors: int = 20, threads: int = 5, role: str = "rank", pid: int = 1) -> Held:
    return Held(0.0, pid, role, descriptors, threads, 0)


def test_processes_are_compared_with_the_most_that_their_role_held_at_first() -> None:
    first = [held(20), held(30, pid=2), held(100, role="Frontend")]
    assert grown(first, [held(30 + SPARE_DESCRIPTORS, 5 + SPARE_THREADS, pid=9)]) == []
    assert grown(first, [held(31 + SPARE_DESCRIPTORS, pid=9)]) == ["rank 9 has 43 descriptors, at first 30"]
    assert grown(first, [held(threads=10, pid=9)]) == ["rank 9 has 10 threads, at first 5"]


def test_slopes_are_of_long_lives_after_their_warm_up() -> None:
    def life(pid: int, seconds: float, per_second: float) -> list[Held]:
        # What a process takes while it warms up does not count.
        steps = range(0, int(seconds), 3)
        return [Held(at, pid, "rank", 1, 1, int(per_second * at + (at > 30) * 1e8)) for at in steps]

    long = WARM_UP_SECONDS + LEAST_LIFE_SECONDS + 6
    slopes = rss_slopes([*life(1, long, 100.0), *life(2, long, 0.0), *life(3, long / 2, 1e6)])
    assert slopes == {"rank": [pytest.approx(100.0, rel=0.01), 0.0]}


def test_only_what_was_not_there_before_is_left_over() -> None:
    before = Left(shared_memory=["a"])
    after = Left(shared_memory=["a", "b"], processes=[7])
    assert left_over(before, after) == ["shared memory b", "process 7"]
    assert left_over(after, before) == []


def test_shared_memory_is_found_but_not_what_other_programs_put_beside_it() -> None:
    paths = [Path("/dev/shm") / name for name in ("wavepp-test-left", "sem.mp-wavepptest")]
    with contextlib.ExitStack() as stack:
        for path in paths:
            path.touch()
            stack.callback(path.unlink)
        found = shared_memory()
    assert (str(paths[0]) in found, str(paths[1]) in found) == (True, False)

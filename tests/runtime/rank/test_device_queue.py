"""What is known of a device that runs behind the host, on a clock of the test's own."""

from __future__ import annotations

from wavepp_worker.model.timed.virtual_device import Ending
from wavepp_worker.runtime.rank.device_queue import OVERDUE_NS, DeviceQueue

from tests.support.measured_wave import MeasuredWave

SECOND = 1_000_000_000


class Unforeseen:
    """Implements ``Completion``: as a GPU's event, it does not tell beforehand when."""

    def wait(self, timeout: float) -> None:
        return None


def test_what_is_left_runs_down_with_the_clock_in_launch_order() -> None:
    now = [10 * SECOND]
    queue = DeviceQueue(lambda: now[0])
    assert queue.left() == []
    queue.launched(Ending(12 * SECOND))
    queue.launched(Ending(15 * SECOND))
    assert queue.left() == [2.0, 5.0]
    now[0] = 11 * SECOND
    assert queue.left() == [1.0, 4.0]
    now[0] = 12 * SECOND
    assert queue.left() == [3.0], "a wave that ends now is over"
    now[0] = 20 * SECOND
    assert queue.left() == []
    queue.launched(Ending(21 * SECOND))
    assert queue.left() == [1.0]


def test_a_device_that_does_not_tell_has_nothing_left() -> None:
    queue = DeviceQueue(lambda: 0)
    queue.launched(None)
    queue.launched(Unforeseen())
    assert queue.left() == []


def test_a_rank_that_never_asks_what_is_left_keeps_no_ends() -> None:
    """Only rank 0 asks; the others launch for days."""
    now = [0]
    queue = DeviceQueue(lambda: now[0])
    for wave in range(1000):
        now[0] = wave * SECOND
        queue.launched(Ending(now[0] + SECOND // 2))
    assert len(queue._waves) == 1


def test_when_a_measured_wave_ends_is_expected_from_what_the_one_before_took_for_its_size() -> None:
    now, measured = [0], []
    queue = DeviceQueue(lambda: now[0], lambda *each: measured.append(each))
    first, second, third = MeasuredWave(4.0), MeasuredWave(1.0), MeasuredWave(1.0)
    queue.launched(first, 2.0)
    soon = OVERDUE_NS / 1e9
    assert queue.left() == [soon], "nobody knows how long it takes, so it is looked at again soon"
    now[0] = 1 * SECOND
    queue.launched(second, 3.0)
    queue.launched(third, 1.0)
    now[0] = 5 * SECOND
    assert measured == []
    first.end()
    assert queue.left() == [5.0, 7.0], "2 seconds for each unit of size, since the first ended at 4"
    assert measured == [(2.0, 4.0)]
    now[0] = 11 * SECOND
    assert queue.left() == [soon, soon + 2.0], "it takes longer than was expected"
    second.end()
    assert queue.left() == [soon], "a third of a second for a unit: it should have ended long ago"
    third.end()
    assert queue.left() == []
    assert measured == [(2.0, 4.0), (3.0, 1.0), (1.0, 1.0)]

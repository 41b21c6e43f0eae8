from __future__ import annotations

import time

import pytest
from wavepp_worker.errors import StepTimeout
from wavepp_worker.model.timed.virtual_device import Ending, Queue


def test_waiting_for_the_device_is_exact_and_bounded() -> None:
    at, busy = time.monotonic_ns() + 100_000_000, time.thread_time()
    Ending(at).wait(1.0)
    assert time.thread_time() - busy < 0.01
    assert 0 <= time.monotonic_ns() - at < 900_000_000
    with pytest.raises(StepTimeout, match=r"busy for another (9.9|10.0) s, more than the 1 s"):
        Ending(time.monotonic_ns() + 10_000_000_000).wait(1.0)


def test_work_ends_in_launch_order_and_after_what_it_needs() -> None:
    now = 5
    queue = Queue(lambda: now)
    assert queue.launch(1e-9) == 6
    assert queue.launch(2e-9) == 8, "behind what is queued"
    assert queue.launch(1e-9, after=20) == 21, "what it needs is ready later"
    now = 40
    assert queue.launch(1e-9) == 41, "the queue stood empty"

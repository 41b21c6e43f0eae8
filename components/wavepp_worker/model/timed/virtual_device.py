"""A device that only takes time: work is queued as on a GPU, and ends when its seconds are over."""

from __future__ import annotations

import time
from collections.abc import Callable

from wavepp_worker.errors import StepTimeout

Clock = Callable[[], int]

SPIN_SECONDS = 0.0001
"""How long before the end a wait stops sleeping: the system wakes sleepers up to this much late."""


class Queue:
    """One engine of a virtual device (compute, a copy direction, a link): work ends in launch order.

    Times are nanoseconds of the clock, which all processes of a host share.
    """

    def __init__(self, clock: Clock = time.monotonic_ns) -> None:
        self._clock = clock
        self.free_at = 0

    def launch(self, seconds: float, after: int = 0) -> int:
        """Queue work that needs what is ready at ``after``; returns when it ends."""
        self.free_at = max(self._clock(), self.free_at, after) + round(seconds * 1e9)
        return self.free_at


class Ending:
    """Implements ``Completion``: work that ends at ``at`` nanoseconds of the monotonic clock."""

    def __init__(self, at: int) -> None:
        self.at = at

    def wait(self, timeout: float) -> None:
        left = (self.at - time.monotonic_ns()) / 1e9
        if left > timeout:
            raise StepTimeout(
                f"the virtual device is busy for another {left:.1f} s, more than the {timeout:.0f} s that a "
                "wave may take; raise speed in timed.json or lower max_num_batched_tokens"
            )
        if left > SPIN_SECONDS:
            time.sleep(left - SPIN_SECONDS)
        while time.monotonic_ns() < self.at:
            time.sleep(0)

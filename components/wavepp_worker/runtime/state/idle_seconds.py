"""How long a rank computed nothing, and why."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Literal, get_args

Cause = Literal["no_requests", "admission", "planner", "ring", "upstream", "host"]
"""Why a rank computes nothing.

- ``no_requests``: it has executed all there is.
- ``admission``: requests are here, and none that could run is admitted.
- ``planner``: on rank 0, the planner holds back what could be launched, for a wave that fits better.
- ``ring``: on rank 0, as many waves are in flight as may be: later ranks are behind.
- ``upstream``: on the other ranks, a request is admitted, and the ranks before have not passed its wave on.
- ``host``: between two waves, what is no forward: planning, taking blocks, publishing, sending.
"""
CAUSES: tuple[Cause, ...] = get_args(Cause)


class IdleSeconds:
    """Adds up, by cause, the seconds in which a rank's device computes nothing. One writer: the LOOP thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` returns seconds."""
        self._clock = clock
        self._since = clock()
        self._cause: Cause = "no_requests"
        self._seconds: dict[str, float] = dict.fromkeys(CAUSES, 0.0)

    def seconds(self) -> Mapping[str, float]:
        """The sums since the start, up to the last call of the others; from any thread."""
        return dict(self._seconds)

    def waits_for(self, cause: Cause) -> None:
        """From now on nothing is computed for this reason, once the device has no work left."""
        self._account()
        self._cause = cause

    def computes(self) -> None:
        """A wave is about to be computed."""
        self._account()

    def computed(self, left: float = 0.0) -> None:
        """It is, or will be in ``left`` seconds on a device that runs behind the host."""
        self._since = self._clock() + left
        self._cause = "host"

    def still_computes(self, left: float) -> None:
        """It does now, and is expected to for so many seconds more, however long it was expected to before."""
        self._since = max(self._since, self._clock() + left)

    def _account(self) -> None:
        now = self._clock()
        if now > self._since:
            self._seconds[self._cause] += now - self._since
            self._since = now

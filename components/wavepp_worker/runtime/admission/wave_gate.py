"""Where lockstep admission may stop a rank's executor: between two waves, never inside one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from wavepp_worker.errors import StepTimeout


class Gate(Protocol):
    """What admission uses of it."""

    def park(self) -> None:
        """Return once no wave runs; none starts until ``resume``."""

    def resume(self) -> None:
        """Let waves run again."""


class WaveGate:
    """Lets the WAVE thread park the LOOP thread between waves (the paper's scheduling boundary, section 4.1).

    Parking has priority: a LOOP thread that runs wave after wave cannot starve it.
    """

    def __init__(self, timeout: float) -> None:
        """``timeout``: seconds either thread may have to wait for the other."""
        self._timeout = timeout
        self._changed = threading.Condition()
        self._executing = False
        self._park_requests = 0

    @contextmanager
    def executing(self) -> Iterator[None]:
        """Held by the LOOP thread while a wave runs; waits while the rank is parked.

        Raises:
            StepTimeout: admission has not let go in time.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: not self._park_requests, self._timeout):
                raise StepTimeout(f"admission still holds the gate between waves after {self._timeout:g} s")
            self._executing = True
        try:
            yield
        finally:
            with self._changed:
                self._executing = False
                self._changed.notify_all()

    def park(self) -> None:
        """Return once no wave runs; none starts until ``resume``.

        Raises:
            StepTimeout: the running wave did not end in time.
        """
        with self._changed:
            self._park_requests += 1
            if not self._changed.wait_for(lambda: not self._executing, self._timeout):
                self._park_requests -= 1
                self._changed.notify_all()
                raise StepTimeout(
                    f"a wave is still executing {self._timeout:g} s after admission asked to park"
                )

    def resume(self) -> None:
        with self._changed:
            self._park_requests -= 1
            self._changed.notify_all()

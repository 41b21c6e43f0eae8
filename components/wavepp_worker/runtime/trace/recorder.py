"""Switches the recording of one rank on and off while it runs."""

from __future__ import annotations

import threading
from pathlib import Path

from wavepp_worker.runtime.trace.recording import Recording
from wavepp_worker.runtime.trace.timeline import Timeline


class Recorder:
    """At most one recording at a time. Thread-safe.

    Attributes:
        timeline: what the rank's parts record in; it is off while nothing is recorded.
    """

    def __init__(self) -> None:
        self.timeline = Timeline()
        self.timeline.on = False
        self._lock = threading.Lock()
        self._recording: Recording | None = None
        self._timer: threading.Timer | None = None

    def start(self, path: Path, seconds: float | None = None) -> None:
        """Record to ``path``, so long at most if ``seconds`` are given.

        Raises:
            OSError: it cannot be written.
            ValueError: a recording is under way.
        """
        with self._lock:
            if self._recording is not None:
                raise ValueError("a recording is under way")
            self.timeline.take()
            self._recording = recording = Recording(path, self.timeline)
            self.timeline.on = True
            if seconds is not None:
                self._timer = threading.Timer(seconds, self._over, (recording,))
                self._timer.daemon = True
                self._timer.start()

    def stop(self) -> None:
        """Write the rest and record no more; nothing happens if nothing is recorded."""
        with self._lock:
            self._end()

    def _over(self, recording: Recording) -> None:
        with self._lock:
            if self._recording is recording:
                self._end()

    def _end(self) -> None:
        recording, self._recording = self._recording, None
        timer, self._timer = self._timer, None
        self.timeline.on = False
        if timer is not None:
            timer.cancel()
        if recording is not None:
            recording.close()

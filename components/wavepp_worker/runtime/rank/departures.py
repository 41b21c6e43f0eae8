"""What every rank but the last does with a wave that it has computed: pass it on to the next."""

from __future__ import annotations

from collections.abc import Callable

from wavepp_worker.liveness.watchdog import Watched
from wavepp_worker.model.stage import MeasuredCompletion
from wavepp_worker.runtime.rank.data_plane import DataPlane
from wavepp_worker.runtime.rank.wave_ends import LaunchedWave, WaveEnds
from wavepp_worker.runtime.trace.timeline import Timeline


class Departures:
    """Passes waves on in the order they were launched.

    Where activations are still on their way to host memory, a thread waits for them, so that the LOOP thread can launch
    further waves; there only that thread sends on the data plane.
    """

    def __init__(
        self,
        plane: DataPlane,
        timeline: Timeline,
        timeout: float,
        fail: Callable[[BaseException], None],
        watched: Watched,
    ) -> None:
        """Arguments as of ``WaveEnds``."""
        self._plane = plane
        self._timeline = timeline
        self._ends = WaveEnds(timeline, timeout, fail, watched, lambda wave: self._send(wave, "departures"))

    def take(self, wave: LaunchedWave) -> None:
        """Send a wave at once, or when its activations are there. Called by the LOOP thread."""
        if isinstance(wave.output.done, MeasuredCompletion):
            self._ends.take(wave)
        else:
            # A virtual device's activations say themselves when they are there.
            self._send(wave, "loop")

    def close(self) -> None:
        """Let the waves that were launched end."""
        self._ends.close()

    def _send(self, wave: LaunchedWave, track: str) -> None:
        with self._timeline.span(track, "send", wave.header.wave_id):
            self._plane.send_wave(wave.header, wave.output.activations)

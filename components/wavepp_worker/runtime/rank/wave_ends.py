"""The ends of waves on a device behind its host: a thread waits for them, so that LOOP can launch further ones."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from queue import SimpleQueue

import msgspec

from wavepp_worker.liveness.watchdog import Watched
from wavepp_worker.model.stage import Completion, MeasuredCompletion, StageOutput
from wavepp_worker.runtime.protocol.waves import WaveHeader
from wavepp_worker.runtime.rank.device_queue import KnownEnd
from wavepp_worker.runtime.state.request_table import LocalRequest
from wavepp_worker.runtime.trace.slices import FORWARD
from wavepp_worker.runtime.trace.timeline import Timeline


@dataclass(frozen=True)
class LaunchedWave:
    """A wave that this rank has executed, or queued on its device.

    Attributes:
        header: as it is passed on; its ``compute`` lacks this rank's seconds where the device measures them.
        launched: when, in nanoseconds of the timeline's clock.
        requests: those of its spans, in their order.
        output: of this rank's stage.
        limit: seconds that each rank's device may take for it.
    """

    header: WaveHeader
    launched: int
    requests: tuple[LocalRequest, ...]
    output: StageOutput
    limit: float


class WaveEnds:
    """Waits for waves in the order they were launched, and does what follows from the end of each."""

    def __init__(
        self,
        timeline: Timeline,
        timeout: float,
        fail: Callable[[BaseException], None],
        watched: Watched,
        ended: Callable[[LaunchedWave], None],
    ) -> None:
        """Put it together.

        Args:
            timeout: seconds that launched waves may take to end when the rank stops.
            fail: ends the rank when a launched wave cannot be completed.
            watched: the thread that waits for the device.
            ended: what follows, in that thread; the header has this rank's seconds by then.
        """
        self._timeline = timeline
        self._timeout = timeout
        self._fail = fail
        self._watched = watched
        self._ended = ended
        self._device_free = 0
        self._launched: SimpleQueue[LaunchedWave | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._complete_launched, name=watched.name, daemon=True)
        self._thread.start()

    def take(self, wave: LaunchedWave) -> None:
        """``wave.output.done`` says when it ends. Called by the LOOP thread."""
        self._launched.put(wave)

    def close(self) -> None:
        """Let the waves that were launched end."""
        self._launched.put(None)
        self._thread.join(self._timeout)

    def _complete_launched(self) -> None:
        try:
            while (wave := self._launched.get()) is not None:
                done, header = wave.output.done, wave.header
                assert done is not None, "only waves of a device behind the host come here"
                measures = isinstance(done, MeasuredCompletion)
                # Its device may have to wait for those of all ranks before.
                limit = wave.limit * (len(header.compute) + measures)
                self._watched.busy(f"the device's end of wave {header.wave_id}", limit)
                done.wait(2 * limit)
                if isinstance(done, MeasuredCompletion):
                    header = msgspec.structs.replace(header, compute=(*header.compute, done.seconds()))
                    wave = replace(wave, header=header)
                self._trace(wave, done)
                self._ended(wave)
                self._watched.idle()
        except Exception as error:
            self._fail(error)

    def _trace(self, wave: LaunchedWave, done: Completion) -> None:
        """Who launched it has recorded when a device computes that tells beforehand."""
        if not self._timeline.on or isinstance(done, KnownEnd):
            return
        start, end, header = max(wave.launched, self._device_free), self._timeline.now(), wave.header
        if isinstance(done, MeasuredCompletion):
            start = max(start, end - round(1e9 * header.compute[-1]))
        self._timeline.record("device", FORWARD, start, end, header.wave_id, spans=header.spans)
        self._device_free = end

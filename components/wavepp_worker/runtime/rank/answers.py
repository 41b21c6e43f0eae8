"""What the last rank does when a wave ends: sample the first token of finished prompts, and tell rank 0."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue

import torch

from wavepp_worker import token_ids
from wavepp_worker.errors import PositionMismatch
from wavepp_worker.liveness.watchdog import Watched
from wavepp_worker.model.sampling import sample
from wavepp_worker.model.stage import Completion
from wavepp_worker.runtime.protocol.events import Finished
from wavepp_worker.runtime.protocol.requests import StageTiming
from wavepp_worker.runtime.protocol.waves import Ending, WaveDone, WaveHeader
from wavepp_worker.runtime.rank.data_plane import DataPlane
from wavepp_worker.runtime.rank.device_queue import KnownEnd
from wavepp_worker.runtime.state.reports import RankReports
from wavepp_worker.runtime.state.request_table import LocalRequest
from wavepp_worker.runtime.trace.slices import FORWARD
from wavepp_worker.runtime.trace.timeline import Timeline


@dataclass(frozen=True)
class LaunchedWave:
    """A wave that the last rank has executed, or queued on its device.

    Attributes:
        header: as rank 0 gets it back.
        launched: when, in nanoseconds of the timeline's clock.
        ended: requests whose prompt ends in it, in the order of ``logits``.
        logits: float32 ``[ended, vocabulary]``, None if no prompt ends.
        done: how to wait for the device; None if it computed in step with the host.
        limit: seconds that each rank's device may take for it.
    """

    header: WaveHeader
    launched: int
    ended: tuple[LocalRequest, ...]
    logits: torch.Tensor | None
    done: Completion | None
    limit: float


class Answers:
    """Completes waves in the order they were launched.

    Where the stage's device runs behind the host, a thread waits for it, so that the LOOP thread can launch further
    waves; there only that thread sends on the data plane.
    """

    def __init__(
        self,
        plane: DataPlane,
        reports: RankReports,
        timeline: Timeline,
        timeout: float,
        fail: Callable[[BaseException], None],
        watched: Watched,
    ) -> None:
        """Put it together.

        Args:
            timeout: seconds that launched waves may take to end when the rank stops.
            fail: ends the rank when a launched wave cannot be completed.
            watched: the thread that waits for the device.
        """
        self._plane = plane
        self._reports = reports
        self._timeline = timeline
        self._timeout = timeout
        self._fail = fail
        self._watched = watched
        self._device_free = 0
        self._launched: SimpleQueue[LaunchedWave | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._complete_launched, name="answers", daemon=True)
        self._thread.start()

    def take(self, wave: LaunchedWave) -> None:
        """Answer a wave at once, or when the device is done with it. Called by the LOOP thread."""
        if wave.done is None:
            self._answer(wave, "loop")
        else:
            self._launched.put(wave)

    def close(self) -> None:
        """Let the waves that were launched end."""
        self._launched.put(None)
        self._thread.join(self._timeout)

    def _complete_launched(self) -> None:
        timeline = self._timeline
        try:
            while (wave := self._launched.get()) is not None:
                assert wave.done is not None, "only waves of a device behind the host come here"
                # Its device may have to wait for those of all ranks before.
                limit = wave.limit * len(wave.header.compute)
                self._watched.busy(f"the device's end of wave {wave.header.wave_id}", limit)
                wave.done.wait(2 * limit)
                if timeline.on and not isinstance(wave.done, KnownEnd):
                    start, self._device_free = max(wave.launched, self._device_free), timeline.now()
                    header = wave.header
                    timeline.record(
                        "device", FORWARD, start, self._device_free, header.wave_id, spans=header.spans
                    )
                self._answer(wave, "answers")
                self._watched.idle()
        except Exception as error:
            self._fail(error)

    def _answer(self, wave: LaunchedWave, track: str) -> None:
        header = wave.header
        if wave.ended:
            requests = [local.request for local in wave.ended]
            with self._timeline.span(track, "answer", header.wave_id, requests):
                self._sample(wave.ended, header.endings, wave.logits)
        self._plane.send_done(
            WaveDone(wave_id=header.wave_id, compute=header.compute, ended=time.monotonic())
        )

    def _sample(
        self, ended: Sequence[LocalRequest], endings: Sequence[Ending], logits: torch.Tensor | None
    ) -> None:
        """Sample the first token of every prompt that ended in a wave; who cannot be answered fails alone."""
        if logits is None or len(logits) != len(ended) or len(endings) != len(ended):
            raise PositionMismatch(
                f"{len(ended)} prompts ended in a wave that does not have logits and an ending for each of them"
            )
        for local, ending, row in zip(ended, endings, logits, strict=True):
            request_id = local.request.request_id
            try:
                seen = token_ids.unpack(ending.seen)
                first = sample(
                    row, ending.sampling, 0, seen, [], banned=ending.banned, allowed=ending.allowed
                )
            except Exception as error:
                # Nobody else's fault: the other prompts of the wave are answered.
                self._reports.failed(request_id, error)
                continue
            stages = tuple(StageTiming(rank, seconds) for rank, seconds in enumerate(local.compute))
            waves = tuple(local.waves)
            self._reports.send(Finished(request_id=request_id, first=first, stages=stages, waves=waves))

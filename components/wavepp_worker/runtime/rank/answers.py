"""What the last rank does when a wave ends: sample the first token of finished prompts, and tell rank 0."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from wavepp_worker import token_ids
from wavepp_worker.errors import PositionMismatch
from wavepp_worker.liveness.watchdog import Watched
from wavepp_worker.model.sampling import sample
from wavepp_worker.model.stage import MeasuredCompletion
from wavepp_worker.runtime.protocol.events import Finished
from wavepp_worker.runtime.protocol.prefill_trace import WaveTrace
from wavepp_worker.runtime.protocol.requests import StageTiming
from wavepp_worker.runtime.protocol.waves import Ending, WaveDone, WaveHeader
from wavepp_worker.runtime.rank.data_plane import DataPlane
from wavepp_worker.runtime.rank.wave_ends import LaunchedWave, WaveEnds
from wavepp_worker.runtime.state.reports import RankReports
from wavepp_worker.runtime.state.request_table import LocalRequest
from wavepp_worker.runtime.trace.timeline import Timeline


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
        """Arguments as of ``WaveEnds``."""
        self._plane = plane
        self._reports = reports
        self._timeline = timeline
        self._ends = WaveEnds(timeline, timeout, fail, watched, lambda wave: self._answer(wave, "answers"))

    def take(self, wave: LaunchedWave) -> None:
        """Answer a wave at once, or when the device is done with it. Called by the LOOP thread."""
        if wave.output.done is None:
            self._answer(wave, "loop")
        else:
            self._ends.take(wave)

    def close(self) -> None:
        """Let the waves that were launched end."""
        self._ends.close()

    def _answer(self, wave: LaunchedWave, track: str) -> None:
        header = wave.header
        if isinstance(wave.output.done, MeasuredCompletion):
            for local in wave.requests:
                local.measured += header.compute[-1]
            note_traced(wave.requests, header, time.monotonic())
        ended = [local for local, span in zip(wave.requests, header.spans, strict=True) if span.last]
        if ended:
            requests = [local.request for local in ended]
            with self._timeline.span(track, "answer", header.wave_id, requests):
                self._sample(ended, header.endings, wave.output.logits)
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
        answers: list[Finished] = []
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
            *earlier, own = local.compute
            seconds = (*earlier, own + local.measured)
            stages = tuple(StageTiming(rank, each) for rank, each in enumerate(seconds))
            waves = tuple(local.waves)
            answers.append(Finished(request_id=request_id, first=first, stages=stages, waves=waves))
        self._reports.send(*answers)


def note_traced(requests: Sequence[LocalRequest], header: WaveHeader, ended: float) -> None:
    """Keep of a wave that every rank has computed what its traced requests are to tell of it.

    Args:
        requests: those of its spans, in their order.
        ended: when the last rank had computed it, monotonic seconds.
    """
    for local, span in zip(requests, header.spans, strict=True):
        if local.request.traced:
            local.waves.append(
                WaveTrace(header.wave_id, span.start, span.length, header.begun, header.compute, ended)
            )

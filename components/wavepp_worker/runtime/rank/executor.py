"""The LOOP thread of every rank: runs waves over the stage's layers and accounts for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue

import torch

from wavepp_worker.errors import PositionMismatch
from wavepp_worker.model.sampling import sample
from wavepp_worker.model.stage import Activations, Chunk, Completion, PagedKV, StageModel, StageOutput
from wavepp_worker.runtime.protocol.events import Finished
from wavepp_worker.runtime.protocol.requests import StageTiming
from wavepp_worker.runtime.protocol.waves import Span, WaveDone, WaveHeader
from wavepp_worker.runtime.rank.data_plane import DataPlane
from wavepp_worker.runtime.rank.device_queue import DeviceQueue, KnownEnd
from wavepp_worker.runtime.state.local_state import LocalState
from wavepp_worker.runtime.state.request_table import LocalRequest, check_span
from wavepp_worker.runtime.trace.slices import FORWARD, LAUNCH

RANK_BEHIND = 20_000
"""Nanoseconds from which a wait for a wave's requests to be admitted here is worth a slice."""


@dataclass(frozen=True)
class LaunchedWave:
    """A wave that the last rank has queued on its device.

    Attributes:
        launched: when, in nanoseconds of the timeline's clock.
        ended: requests whose prompt ends in it, in the order of ``logits``.
    """

    header: WaveHeader
    launched: int
    ended: list[LocalRequest]
    logits: torch.Tensor | None
    done: Completion | None


class Executor:
    """Executes one wave at a time on this rank, in the order rank 0 launched them."""

    def __init__(
        self,
        state: LocalState,
        stage: StageModel,
        kv: PagedKV,
        plane: DataPlane,
        fail: Callable[[BaseException], None],
    ) -> None:
        """``fail`` ends the rank when a launched wave cannot be completed.

        Where the stage's device runs behind the host, a thread waits for it on the last rank, so that the LOOP
        thread can launch further waves; there only that thread sends on ``plane``.
        """
        self._state = state
        self._stage = stage
        self._kv = kv
        self._plane = plane
        self._next_wave = 0
        self._device_free = 0
        self.device = DeviceQueue()
        self._fail = fail
        self._launched: SimpleQueue[LaunchedWave | None] = SimpleQueue()
        self._completer = threading.Thread(target=self._complete_launched, name="completions", daemon=True)
        self._completer.start()

    def execute(self, header: WaveHeader, activations: Activations) -> None:
        """Run a wave and pass it on: activations to the next rank, or its end to rank 0.

        Everything this rank keeps of the wave (published blocks, hand-off, finished requests) is settled
        before it is passed on, so when rank 0 learns that a wave is done, all ranks are done with it.

        Raises:
            PositionMismatch: the wave or one of its spans is not what this rank expects next.
        """
        state, timeline = self._state, self._state.timeline
        if header.wave_id != self._next_wave:
            raise PositionMismatch(f"wave {header.wave_id} arrived, wave {self._next_wave} is next")
        self._next_wave += 1
        arrived = timeline.now()
        locals_ = [state.requests.committed(span, state.config.wait) for span in header.spans]
        if (ready := timeline.now()) - arrived > RANK_BEHIND:
            timeline.record("loop", "wait for admission", arrived, ready, header.wave_id)
        for local, span in zip(locals_, header.spans, strict=True):
            state.materialise(local)
            check_span(local, span)
        launched, begun = timeline.now(), time.perf_counter()
        inputs = self._prompt_tokens(locals_, header.spans) if state.config.first else activations
        chunks = [self._chunk(local, span) for local, span in zip(locals_, header.spans, strict=True)]
        output = self._stage.forward(inputs, chunks, self._kv)
        seconds = time.perf_counter() - begun if output.seconds is None else output.seconds
        self.device.launched(output.done)
        self._trace(header, output, launched)
        compute = (*header.compute, seconds)
        passed_on = WaveHeader(wave_id=header.wave_id, spans=header.spans, compute=compute)
        with timeline.span("loop", "publish", header.wave_id):
            for local, span in zip(locals_, header.spans, strict=True):
                state.advance(local, span, compute)
        state.wave_executed()
        if state.config.last:
            ended = [local for local, span in zip(locals_, header.spans, strict=True) if span.last]
            wave = LaunchedWave(passed_on, launched, ended, output.logits, output.done)
            if output.done is None:
                self._complete(wave)
            else:
                self._launched.put(wave)
        else:
            with timeline.span("loop", "send", header.wave_id):
                self._plane.send_wave(passed_on, output.activations)

    def close(self) -> None:
        """Let the waves that were launched end."""
        self._launched.put(None)
        self._completer.join(self._state.config.wait)

    def materialise(self, request_id: str) -> bool:
        """Claim a request's blocks ahead of its first wave; False if there is nothing to do for it."""
        local = self._state.requests.get(request_id)
        return local is not None and self._state.materialise(local)

    def _trace(self, header: WaveHeader, output: StageOutput, launched: int) -> None:
        """Record the forward of a wave; on a device behind the host, its launch and what is known of the device."""
        timeline, done = self._state.timeline, output.done
        if not timeline.on:
            return
        name = FORWARD if done is None else LAUNCH
        timeline.record("loop", name, launched, timeline.now(), header.wave_id, spans=header.spans)
        if isinstance(done, KnownEnd) and output.seconds is not None:
            start = done.at - round(1e9 * output.seconds)
            timeline.record("device", FORWARD, start, done.at, header.wave_id, spans=header.spans)

    def _prompt_tokens(self, locals_: list[LocalRequest], spans: tuple[Span, ...]) -> torch.Tensor:
        packed = b"".join(
            local.request.tokens[4 * span.start : 4 * (span.start + span.length)]
            for local, span in zip(locals_, spans, strict=True)
        )
        return torch.frombuffer(bytearray(packed), dtype=torch.int32).long()

    def _chunk(self, local: LocalRequest, span: Span) -> Chunk:
        assert local.table is not None, "materialised before its first wave"
        return Chunk(span.start, span.length, local.table, wants_logits=span.last)

    def _complete_launched(self) -> None:
        try:
            while (wave := self._launched.get()) is not None:
                self._complete(wave)
        except Exception as error:
            self._fail(error)

    def _complete(self, wave: LaunchedWave) -> None:
        """Once the device is done with a wave of the last rank, answer what ended in it and tell rank 0."""
        timeline, header, track = self._state.timeline, wave.header, "loop"
        if wave.done is not None:
            wave.done.wait(self._state.config.wait)
            track = "answers"
            if timeline.on and not isinstance(wave.done, KnownEnd):
                start, self._device_free = max(wave.launched, self._device_free), timeline.now()
                timeline.record(
                    "device", FORWARD, start, self._device_free, header.wave_id, spans=header.spans
                )
        if wave.ended:
            with timeline.span(track, "answer", header.wave_id, [local.request for local in wave.ended]):
                self._answer(wave.ended, wave.logits)
        self._plane.send_done(WaveDone(wave_id=header.wave_id, compute=header.compute))

    def _answer(self, ended: list[LocalRequest], logits: torch.Tensor | None) -> None:
        """Sample the first token of every prompt that ended in a wave."""
        if logits is None or len(logits) != len(ended):
            raise PositionMismatch(
                f"{len(ended)} prompts ended in a wave that has no logits for each of them"
            )
        for local, row in zip(ended, logits, strict=True):
            prompt = torch.frombuffer(bytearray(local.request.tokens), dtype=torch.int32).long()
            request = local.request
            first = sample(row, request.sampling, 0, prompt, [], banned=request.banned)
            stages = tuple(StageTiming(rank, seconds) for rank, seconds in enumerate(local.compute))
            self._state.events.send(Finished(request_id=local.request.request_id, first=first, stages=stages))

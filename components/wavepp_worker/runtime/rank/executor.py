"""Runs the waves of one rank over its stage's layers, in the order rank 0 launched them."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from wavepp_worker import token_ids
from wavepp_worker.liveness.step_bound import StepBound
from wavepp_worker.liveness.watchdog import Watched
from wavepp_worker.model.stage import (
    Activations,
    Chunk,
    ChunkState,
    MeasuredCompletion,
    PagedKV,
    StageModel,
    StageOutput,
)
from wavepp_worker.runtime.planning.learned_cost import COST_GUESS
from wavepp_worker.runtime.protocol.waves import Ending, Span, WaveHeader
from wavepp_worker.runtime.rank.answers import Answers, note_traced
from wavepp_worker.runtime.rank.departures import Departures
from wavepp_worker.runtime.rank.device_queue import DeviceQueue, KnownEnd
from wavepp_worker.runtime.rank.execution_order import ExecutionOrder
from wavepp_worker.runtime.rank.wave_ends import LaunchedWave
from wavepp_worker.runtime.state.idle_seconds import Cause, IdleSeconds
from wavepp_worker.runtime.state.request_table import LocalRequest
from wavepp_worker.runtime.trace.slices import FORWARD, LAUNCH
from wavepp_worker.runtime.trace.timeline import Timeline


class Executor:
    """Executes one wave at a time. Used by the LOOP thread.

    Attributes:
        device: the waves this rank has launched and its device has not finished.
        idle: how long it computed nothing.
    """

    def __init__(
        self,
        stage: StageModel,
        kv: PagedKV,
        order: ExecutionOrder,
        timeline: Timeline,
        *,
        first: bool,
        outlet: Answers | Departures,
        watched: Watched,
        bound: StepBound,
        idle: IdleSeconds,
    ) -> None:
        """Put it together.

        Args:
            first: this is rank 0, whose inputs are token ids.
            outlet: takes each wave that was launched; ``Answers`` on the last rank.
            watched: the LOOP thread.
            bound: how long a wave may take.
            idle: what it tells when it computes.
        """
        self._stage = stage
        self._kv = kv
        self._order = order
        self._timeline = timeline
        self._first = first
        self._outlet = outlet
        self._last = isinstance(outlet, Answers)
        self._watched = watched
        self._bound = bound
        self.device = DeviceQueue(measured=self._measured)
        self.idle = idle

    def execute(self, header: WaveHeader, activations: Activations) -> None:
        """Run a wave and pass it on: activations to the next rank, or its answers and its end to rank 0.

        Everything this rank keeps of the wave (published blocks, hand-off, finished requests) is settled
        before it is passed on, so when rank 0 learns that a wave is done, all ranks are done with it.

        Raises:
            PositionMismatch: the wave, or a chunk in it, is not what comes next on this rank.
        """
        timeline, spans = self._timeline, header.spans
        size = _size(spans)
        limit = self._bound.seconds(size)
        self._watched.busy(_words(header), limit)
        locals_ = self._order.begin(header)
        launched, begun, since = timeline.now(), time.perf_counter(), time.monotonic()
        inputs = _prompt_tokens(locals_, spans) if self._first else activations
        chunks = [_chunk(local, span) for local, span in zip(locals_, spans, strict=True)]
        self._note_device()
        self.idle.computes()
        output = self._stage.forward(inputs, chunks, self._kv)
        measures = isinstance(output.done, MeasuredCompletion)
        seconds = time.perf_counter() - begun if output.seconds is None else output.seconds
        # What a device measures is known only when it has computed: whoever waits for that adds it to the header.
        own = () if measures else (seconds,)
        if not measures:
            self._bound.observe(size, seconds)
        self.device.launched(output.done, size)
        self.idle.computed(max(self.device.left(), default=0.0))
        self._trace(header, output, launched)
        endings = _endings(locals_, spans) if self._first else header.endings
        traced = any(local.request.traced for local in locals_)
        passed_on = WaveHeader(
            wave_id=header.wave_id,
            spans=spans,
            endings=endings,
            compute=(*header.compute, *own),
            begun=(*header.begun, since) if traced else (),
        )
        with timeline.span("loop", "publish", header.wave_id):
            self._order.end(locals_, spans, passed_on.compute if own else (*header.compute, 0.0))
        if traced and self._last and own:
            behind = output.done is not None
            ended = time.monotonic() + max(self.device.left(), default=0.0) if behind else since + seconds
            note_traced(locals_, passed_on, ended)
        self._outlet.take(LaunchedWave(passed_on, launched, tuple(locals_), output, limit))

    def waits_for(self, cause: Cause) -> None:
        """No wave can be executed now, for this reason."""
        self._note_device()
        self.idle.waits_for(cause)

    def close(self) -> None:
        """Let the waves that were launched end."""
        self._outlet.close()

    def _note_device(self) -> None:
        """It may take longer than was expected."""
        left = self.device.left()
        if left:
            self.idle.still_computes(left[-1])

    def _measured(self, size: float, seconds: float) -> None:
        self._bound.observe(size, seconds)
        self._order.measured(seconds)

    def _trace(self, header: WaveHeader, output: StageOutput, launched: int) -> None:
        """Record the forward of a wave; on a device behind the host, its launch and what is known of the device."""
        timeline, done = self._timeline, output.done
        if not timeline.on:
            return
        name = FORWARD if done is None else LAUNCH
        timeline.record("loop", name, launched, timeline.now(), header.wave_id, spans=header.spans)
        if isinstance(done, KnownEnd) and output.seconds is not None:
            start = done.at - round(1e9 * output.seconds)
            timeline.record("device", FORWARD, start, done.at, header.wave_id, spans=header.spans)


def _size(spans: Sequence[Span]) -> float:
    """What a wave costs, in tokens."""
    return COST_GUESS.a + sum(COST_GUESS.work(span.start, span.length) for span in spans)


def _words(header: WaveHeader) -> str:
    tokens = sum(span.length for span in header.spans)
    return f"wave {header.wave_id} ({tokens} tokens of {len(header.spans)} requests)"


def _prompt_tokens(locals_: Sequence[LocalRequest], spans: Sequence[Span]) -> torch.Tensor:
    packed = b"".join(
        token_ids.part(local.whole.tokens, span.start, span.start + span.length)
        for local, span in zip(locals_, spans, strict=True)
    )
    return token_ids.as_tensor(packed)


def _endings(locals_: Sequence[LocalRequest], spans: Sequence[Span]) -> tuple[Ending, ...]:
    requests = [local.whole for local, span in zip(locals_, spans, strict=True) if span.last]
    return tuple(
        Ending(
            request.sampling,
            request.banned,
            token_ids.distinct(request.tokens) if request.sampling.repetition_penalty != 1.0 else b"",
            request.allowed,
        )
        for request in requests
    )


def _chunk(local: LocalRequest, span: Span) -> Chunk:
    assert local.table is not None, "materialised before its first wave"
    return Chunk(
        span.start, span.length, local.table, span.last, _chunk_state(local, span), local.request.lora
    )


def _chunk_state(local: LocalRequest, span: Span) -> ChunkState | None:
    """Where the chunk's state is, if some of this rank's layers are recurrent."""
    claimed = local.materialised
    assert claimed is not None, "materialised before its first wave"
    for window, state in enumerate(claimed.states):
        if state is not None:
            before = claimed.resume[window] if span.start == local.endpoint else state
            return ChunkState(before, state, local.snapshots[window])
    return None

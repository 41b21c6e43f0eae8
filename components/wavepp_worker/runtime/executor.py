"""The LOOP thread of every rank: runs waves over the stage's layers and accounts for them."""

from __future__ import annotations

import time

import torch

from wavepp_worker.errors import PositionMismatch
from wavepp_worker.model.sampling import sample
from wavepp_worker.model.stage import Boundary, Chunk, PagedKV, StageModel
from wavepp_worker.runtime.data_plane import DataPlane
from wavepp_worker.runtime.local_state import LocalState
from wavepp_worker.runtime.messages import StageTiming
from wavepp_worker.runtime.protocol import Finished, Span, WaveHeader
from wavepp_worker.runtime.requests import LocalRequest, check_span


class Executor:
    """Executes one wave at a time on this rank, in the order rank 0 launched them."""

    def __init__(self, state: LocalState, stage: StageModel, kv: PagedKV, plane: DataPlane) -> None:
        self._state = state
        self._stage = stage
        self._kv = kv
        self._plane = plane
        self._next_wave = 0

    def execute(self, header: WaveHeader, boundary: Boundary) -> None:
        """Run a wave and pass it on: activations to the next rank, or its end to rank 0.

        Everything this rank keeps of the wave (published blocks, hand-off, finished requests) is settled
        before it is passed on, so when rank 0 learns that a wave is done, all ranks are done with it.

        Raises:
            PositionMismatch: the wave or one of its spans is not what this rank expects next.
        """
        state = self._state
        if header.wave_id != self._next_wave:
            raise PositionMismatch(f"wave {header.wave_id} arrived, wave {self._next_wave} is next")
        self._next_wave += 1
        locals_ = [state.requests.committed(span, state.config.wait) for span in header.spans]
        for local, span in zip(locals_, header.spans, strict=True):
            state.materialise(local)
            check_span(local, span)
        begun = time.perf_counter()
        inputs = self._prompt_tokens(locals_, header.spans) if state.config.first else boundary
        chunks = [self._chunk(local, span) for local, span in zip(locals_, header.spans, strict=True)]
        output = self._stage.forward(inputs, chunks, self._kv)
        seconds = time.perf_counter() - begun if output.seconds is None else output.seconds
        compute = (*header.compute, seconds)
        for local, span in zip(locals_, header.spans, strict=True):
            state.advance(local, span, compute)
        state.wave_executed()
        if state.config.last:
            if output.done is not None:
                output.done.wait(state.config.wait)
            self._answer(locals_, header.spans, output.logits)
        else:
            passed_on = WaveHeader(wave_id=header.wave_id, spans=header.spans, compute=compute)
            self._plane.send_wave(passed_on, output.boundary)

    def materialise(self, request_id: str) -> bool:
        """Claim a request's blocks ahead of its first wave; False if there is nothing to do for it."""
        local = self._state.requests.get(request_id)
        return local is not None and self._state.materialise(local)

    def _prompt_tokens(self, locals_: list[LocalRequest], spans: tuple[Span, ...]) -> torch.Tensor:
        packed = b"".join(
            local.request.tokens[4 * span.start : 4 * (span.start + span.length)]
            for local, span in zip(locals_, spans, strict=True)
        )
        return torch.frombuffer(bytearray(packed), dtype=torch.int32).long()

    def _chunk(self, local: LocalRequest, span: Span) -> Chunk:
        assert local.table is not None, "materialised before its first wave"
        return Chunk(span.start, span.length, local.table, wants_logits=span.last)

    def _answer(
        self, locals_: list[LocalRequest], spans: tuple[Span, ...], logits: torch.Tensor | None
    ) -> None:
        """Sample the first token of every prompt that ended in this wave."""
        ended = [local for local, span in zip(locals_, spans, strict=True) if span.last]
        if not ended:
            return
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

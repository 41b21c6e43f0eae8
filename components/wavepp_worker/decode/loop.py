"""The step loop: each step runs the newest token of every running request as one wave and samples more."""

from __future__ import annotations

import logging
import time

import torch

from wavepp_worker.decode.requests import LiveRequest, Requests
from wavepp_worker.errors import RequestTimeout, WaveppError
from wavepp_worker.model.sampling import sample
from wavepp_worker.model.stage import Chunk, PagedKV, StageModel

logger = logging.getLogger(__name__)


class StepLoop:
    """Runs a whole model over the KV of running requests.

    Attributes:
        steps: forward passes so far.
        prompt_tokens_computed: prompt tokens among what they ran.
    """

    def __init__(self, stage: StageModel, kv: PagedKV, requests: Requests, timeout: float) -> None:
        self._stage = stage
        self._kv = kv
        self._requests = requests
        self._timeout = timeout
        self.steps = 0
        self.prompt_tokens_computed = 0

    def run(self) -> None:
        """Step until the requests are closed. Any error that is not one request's own ends it."""
        while (running := self._requests.next_step()) is not None:
            self._step([live for live in running if self._wanted(live)])

    def _wanted(self, live: LiveRequest) -> bool:
        if live.aborted:
            self._requests.finish(live, "cancelled")
            return False
        if time.monotonic() > live.deadline:
            name = live.request.request_id
            text = f"request {name} did not finish within request_timeout={self._timeout:.0f} s"
            self._requests.fail(live, RequestTimeout(text))
            return False
        return True

    def _step(self, running: list[LiveRequest]) -> None:
        if not running:
            return
        newest = torch.tensor([live.sequence.generated[-1] for live in running], dtype=torch.int64)
        chunks = [self._chunk(live) for live in running]
        logits = self._stage.forward(newest, chunks, self._kv).logits
        if logits is None:
            raise WaveppError("the model gave no logits; a decode worker needs all of its layers")
        self.steps += 1
        for live, row in zip(running, logits.cpu(), strict=True):
            self._advance(live, row)

    def _chunk(self, live: LiveRequest) -> Chunk:
        assert live.table is not None
        chunk = live.sequence.next_chunk(live.table)
        self.prompt_tokens_computed += live.sequence.prompt_tokens_in(chunk)
        return chunk

    def _advance(self, live: LiveRequest, logits: torch.Tensor) -> None:
        sequence, params = live.sequence, live.request.sampling
        try:
            chosen = sample(
                logits,
                params,
                len(sequence.generated),
                sequence.prompt,
                sequence.generated,
                banned=sequence.banned,
            )
        except Exception as error:
            if not isinstance(error, WaveppError):
                logger.exception("sampling for request %s failed", live.request.request_id)
                error = WaveppError(f"sampling failed: {type(error).__name__}: {error}")
            self._requests.fail(live, error)
            return
        reason = sequence.accept(chosen.token)
        if reason is not None:
            self._requests.finish(live, reason, tokens=(chosen,))
        else:
            self._requests.emit(live, (chosen,))

"""The step loop: each step runs the newest token of every running request as one wave and samples more.

A prompt that no prefill worker has seen runs in parts, beside them, and so does all of a request that was preempted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import torch

from wavepp_worker.decode.decoding_request import DecodingRequest
from wavepp_worker.decode.engine_io import DecodeStep
from wavepp_worker.decode.guide import COMPLETE_SECONDS
from wavepp_worker.decode.scheduler import Scheduler
from wavepp_worker.errors import RequestFailed, RequestTimeout, WaveppError, error_text
from wavepp_worker.liveness.step_bound import StepBound
from wavepp_worker.liveness.watchdog import Watched
from wavepp_worker.log_form import of_request
from wavepp_worker.model.sampled_token import SampledToken
from wavepp_worker.model.sampling import sample
from wavepp_worker.model.stage import Chunk, MeasuredCompletion, PagedKV, StageModel

GUIDE_SECONDS = 0.005
"""That a step waits for who does not know yet what may come next; nearly all do before the model has computed."""
ALONE_SECONDS = 0.05
"""The same where nobody else has anything to compute."""
PROMPT_TOKENS = 256
"""Of prompts that run here, and of what runs again, in one step: what is generated meanwhile waits for them."""
_STEP_SIZE = 1.0
"""All steps cost much the same, but for the tokens of prompts, which count as a step each."""

logger = logging.getLogger(__name__)


class StepLoop:
    """Runs a whole model over the KV of running requests.

    Attributes:
        steps: forward passes so far.
        prompt_tokens_computed: prompt tokens among what they ran.
    """

    def __init__(
        self,
        stage: StageModel,
        kv: PagedKV,
        scheduler: Scheduler,
        timeout: float,
        watched: Watched,
        bound: StepBound,
        on_step: Callable[[DecodeStep], None] | None = None,
    ) -> None:
        """
        Args:
            timeout: seconds a request may take.
            watched: this thread.
            bound: of its steps.
            on_step: told of every forward pass.
        """
        self._on_step = on_step
        self._stage = stage
        self._kv = kv
        self._scheduler = scheduler
        self._timeout = timeout
        self._watched = watched
        self._bound = bound
        self.steps = 0
        self.prompt_tokens_computed = 0

    def run(self) -> None:
        """Step until the scheduler is closed. Any error that is not one request's own ends it."""
        while (running := self._scheduler.next_step()) is not None:
            begun = time.monotonic()
            behind = sum(each.sequence.left for each in running if each.sequence.left > 1)
            size = _STEP_SIZE + min(PROMPT_TOKENS, behind)
            self._watched.busy(f"step {self.steps} ({len(running)} requests)", self._bound.seconds(size))
            chunks = self._step([decoding for decoding in running if self._wanted(decoding)])
            seconds = time.monotonic() - begun
            self._bound.observe(size, seconds)
            if chunks and self._on_step is not None:
                self._on_step(self._pass(chunks, seconds))
            self._watched.idle()

    def _pass(self, chunks: list[tuple[DecodingRequest, Chunk]], seconds: float) -> DecodeStep:
        newest: list[Chunk] = []
        prompts: list[Chunk] = []
        for decoding, chunk in chunks:
            # What a preempted request has generated counts as its prompt when it runs again.
            again = chunk.length > 1 or decoding.sequence.prompt_tokens_in(chunk)
            (prompts if again else newest).append(chunk)
        queued_requests, queued_tokens = self._scheduler.queued()
        return DecodeStep(
            requests=len(newest),
            kv_tokens=sum(chunk.start + 1 for chunk in newest),
            prompt_requests=len(prompts),
            prompt_tokens=sum(chunk.length for chunk in prompts),
            prompt_context_tokens=sum(chunk.start for chunk in prompts),
            seconds=seconds,
            queued_requests=queued_requests,
            queued_tokens=queued_tokens,
        )

    def _wanted(self, decoding: DecodingRequest) -> bool:
        if decoding.aborted:
            self._scheduler.finish(decoding, "cancelled")
            return False
        if time.monotonic() > decoding.deadline:
            name = decoding.request_id
            text = f"request {name} did not finish within request_timeout={self._timeout:.0f} s"
            self._scheduler.fail(decoding, RequestTimeout(text))
            return False
        return True

    def _step(self, running: list[DecodingRequest]) -> list[tuple[DecodingRequest, Chunk]]:
        """Returns what was computed of whom."""
        if not running:
            return []
        for decoding in running:
            if decoding.sequence.guide is not None:
                decoding.sequence.guide.begin()
        # The others have run already, and wait to know what may come next.
        behind = [decoding for decoding in running if decoding.logits is None]
        chunks = self._run_newest(behind) if behind else []
        deadline = time.monotonic() + (GUIDE_SECONDS if behind else ALONE_SECONDS)
        guided: list[tuple[DecodingRequest, SampledToken]] = []
        for decoding in running:
            if decoding.logits is not None:
                chosen = self._sample_next(decoding, max(0.0, deadline - time.monotonic()))
                if chosen is not None and decoding.sequence.guide is not None:
                    guided.append((decoding, chosen))
                elif chosen is not None:
                    self._emit(decoding, chosen, 0.0)
        # All of them have begun to find out whether anything can follow.
        deadline = time.monotonic() + COMPLETE_SECONDS
        for decoding, chosen in guided:
            self._emit(decoding, chosen, max(0.0, deadline - time.monotonic()))
        return chunks

    def _run_newest(self, running: list[DecodingRequest]) -> list[tuple[DecodingRequest, Chunk]]:
        parts = self._chunks(running)
        tokens = [token for decoding, chunk in parts for token in decoding.sequence.tokens_of(chunk)]
        newest = torch.tensor(tokens, dtype=torch.int64)
        output = self._stage.forward(newest, [chunk for _, chunk in parts], self._kv)
        if isinstance(output.done, MeasuredCompletion):
            output.done.wait(self._timeout)
        logits = output.logits
        ended = [decoding for decoding, chunk in parts if chunk.wants_logits]
        if logits is None and ended:
            raise WaveppError("the model gave no logits; a decode worker needs all of its layers")
        self.steps += 1
        for decoding, chunk in parts:
            decoding.sequence.ran(chunk)
            self.prompt_tokens_computed += decoding.sequence.prompt_tokens_in(chunk)
        if logits is not None:
            for decoding, row in zip(ended, logits, strict=True):
                decoding.logits = row
        return parts

    def _chunks(self, running: list[DecodingRequest]) -> list[tuple[DecodingRequest, Chunk]]:
        """What each runs next; of those with more than a token left who began first, as far as one step takes them."""
        parts, room = [], PROMPT_TOKENS
        for decoding in running:
            assert decoding.table is not None
            behind = decoding.sequence.left > 1
            if not behind or room:
                chunk = decoding.sequence.next_chunk(decoding.table, decoding.state, room if behind else 1)
                room -= chunk.length if behind else 0
                parts.append((decoding, chunk))
        return parts

    def _fail(self, decoding: DecodingRequest, error: Exception) -> None:
        """One request cannot go on; the others of its step do."""
        name = decoding.request_id
        if not isinstance(error, WaveppError):
            logger.error("request %s failed", name, exc_info=error, extra=of_request(name))
        self._scheduler.fail(
            decoding, RequestFailed(f"request {name} failed while decoding: {error_text(error)}")
        )

    def _sample_next(self, decoding: DecodingRequest, patience: float) -> SampledToken | None:
        """Choose the next token, unless what it may be is not known within ``patience`` seconds, or none may be."""
        sequence, params, allowed = decoding.sequence, decoding.request.sampling, b""
        try:
            if sequence.guide is not None:
                found = sequence.guide.allowed(patience)
                if found is None:
                    return None
                if not found:
                    self._scheduler.finish(decoding, "stop")
                    return None
                allowed = found
            assert decoding.logits is not None
            logits, decoding.logits = decoding.logits, None
            chosen = sample(
                logits,
                params,
                len(sequence.generated),
                sequence.prompt,
                sequence.generated,
                banned=sequence.banned,
                allowed=allowed,
            )
            sequence.accept(chosen.token)
            return chosen
        except Exception as error:
            self._fail(decoding, error)
            return None

    def _emit(self, decoding: DecodingRequest, chosen: SampledToken, patience: float) -> None:
        """Emit what was chosen, the last if its guide knows so within ``patience`` seconds."""
        try:
            reason = decoding.sequence.ended(patience)
        except Exception as error:
            self._fail(decoding, error)
            return
        if reason is not None:
            self._scheduler.finish(decoding, reason, tokens=(chosen,))
        else:
            self._scheduler.emit(decoding, (chosen,))

"""One request in the decode engine, from submission to its last output."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import torch

from wavepp_worker.decode.engine_io import Arrived, DecodeOutput, DecodeRequest, FinishReason
from wavepp_worker.decode.sequence import Sequence
from wavepp_worker.errors import WaveppError
from wavepp_worker.log_form import of_request
from wavepp_worker.model.sampled_token import SampledToken

logger = logging.getLogger(__name__)

OnOutput = Callable[[DecodeOutput], object]


class DecodingRequest:
    """A request that is live in the engine.

    It belongs to the *KV arrivals* thread until its KV and first token are here, then to the step loop; only
    its owner advances ``sequence`` and finishes it.

    Attributes:
        submitted: monotonic seconds.
        deadline: monotonic seconds after which it fails.
        table: int64 ``[blocks]``, its physical blocks, once it has them.
        state: its place for the state of recurrent layers, once it has blocks.
        reused_tokens, arrived: as ``DecodeOutput`` tells.
        computed: its prompt needs nothing any more of whoever prefills it but its KV.
        aborted: nobody wants it any more; its owner finishes it as soon as it can.
        logits: float32 ``[vocabulary]`` of its newest token, while it is not known what may come next.
    """

    def __init__(self, request: DecodeRequest, on_output: OnOutput, deadline: float) -> None:
        self.request = request
        self.sequence = Sequence(request)
        self.submitted = time.monotonic()
        self.deadline = deadline
        self.table: torch.Tensor | None = None
        self.state = -1
        self.reused_tokens = 0
        self.arrived: Arrived | None = None
        self.computed = request.handoff is None
        self.aborted = False
        self.logits: torch.Tensor | None = None
        self._on_output = on_output
        self._ended = False
        # Re-entrant, as a callback may well abort its own request.
        self._emitting = threading.RLock()

    @property
    def request_id(self) -> str:
        return self.request.request_id

    def emit(
        self,
        tokens: tuple[SampledToken, ...] = (),
        finish_reason: FinishReason | None = None,
        error: WaveppError | None = None,
    ) -> None:
        """Hand an output to the caller, unless one with a finish reason went before."""
        output = DecodeOutput(
            request_id=self.request_id,
            tokens=tokens,
            finish_reason=finish_reason,
            error=str(error) if error is not None else None,
            error_kind=_kind(error) if error is not None else None,
            prompt_tokens=self.request.prompt_tokens,
            reused_tokens=self.reused_tokens,
            arrived=self.arrived,
        )
        self.arrived = None
        with self._emitting:
            if self._ended:
                return
            self._ended = finish_reason is not None
            try:
                self._on_output(output)
            except Exception:
                logger.exception(
                    "request %s is aborted, as its callback failed",
                    self.request_id,
                    extra=of_request(self.request_id),
                )
                self.aborted = True


def _kind(error: WaveppError) -> str:
    """The nearest class of ``errors``; a package may have subclasses of its own."""
    return next(each.__name__ for each in type(error).__mro__ if each.__module__ == WaveppError.__module__)

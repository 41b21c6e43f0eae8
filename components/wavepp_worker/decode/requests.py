"""The requests an engine has accepted and not yet finished, shared by its threads."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import torch

from wavepp_worker.decode.batch import Batch
from wavepp_worker.decode.messages import DecodeOutput, DecodeRequest, FinishReason
from wavepp_worker.decode.sequence import Sequence
from wavepp_worker.errors import AuditError, EngineDead, InvalidRequest, WaveppError
from wavepp_worker.model.sampling import SampledToken

logger = logging.getLogger(__name__)

OnOutput = Callable[[DecodeOutput], None]


class LiveRequest:
    """One request from submission to its last output.

    It belongs to the receive thread until its KV and first token are here, then to the step loop; only its
    owner advances ``sequence`` and finishes it.

    Attributes:
        deadline: monotonic seconds after which it fails.
        table: int64 physical blocks, once it has room.
        reused_tokens: as ``DecodeOutput`` tells.
        aborted: nobody wants it any more; its owner finishes it as soon as it can.
    """

    def __init__(self, request: DecodeRequest, on_output: OnOutput, deadline: float) -> None:
        self.request = request
        self.sequence = Sequence(request)
        self.deadline = deadline
        self.table: torch.Tensor | None = None
        self.reused_tokens = 0
        self.aborted = False
        self._on_output = on_output
        self._ended = False
        # Re-entrant, as a callback may well abort its own request.
        self._emitting = threading.RLock()

    def emit(
        self,
        tokens: tuple[SampledToken, ...] = (),
        finish_reason: FinishReason | None = None,
        error: WaveppError | None = None,
    ) -> None:
        """Hand an output to the caller, unless one with a finish reason went before."""
        output = DecodeOutput(
            request_id=self.request.request_id,
            tokens=tokens,
            finish_reason=finish_reason,
            error=str(error) if error is not None else None,
            error_kind=_kind(error) if error is not None else None,
            prompt_tokens=self.request.prompt_tokens,
            reused_tokens=self.reused_tokens,
        )
        with self._emitting:
            if self._ended:
                return
            self._ended = finish_reason is not None
            try:
                self._on_output(output)
            except Exception:
                logger.exception("request %s is aborted, as its callback failed", self.request.request_id)
                self.aborted = True


def _kind(error: WaveppError) -> str:
    """The nearest class of ``errors``; a room may have subclasses of its own."""
    return next(each.__name__ for each in type(error).__mro__ if each.__module__ == WaveppError.__module__)


class Requests:
    """Every live request, and the batch they make up. Thread-safe; callbacks run outside its lock."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._live: dict[str, LiveRequest] = {}
        self._grants: dict[str, Callable[[list[int]], None]] = {}
        self._closed: EngineDead | None = None
        self._tokens_generated = 0

    @property
    def tokens_generated(self) -> int:
        return self._tokens_generated

    def add(self, live: LiveRequest) -> None:
        """Accept a request.

        Raises:
            InvalidRequest: its id is in use.
            EngineDead: ``close`` was called.
        """
        request_id = live.request.request_id
        with self._lock:
            if self._closed is not None:
                raise self._closed
            if request_id in self._live:
                raise InvalidRequest(f"request id {request_id} is in use; ids are unique among live requests")
            self._live[request_id] = live

    def abort(self, request_id: str) -> None:
        """Have the owner finish a request as cancelled; unknown ids are ignored."""
        with self._changed:
            live = self._live.get(request_id)
            if live is not None:
                live.aborted = True
                self._changed.notify_all()

    def ask_for_room(self, live: LiveRequest, blocks: int, grant: Callable[[list[int]], None]) -> None:
        """Queue for blocks; ``grant(blocks)`` comes under the lock, at once or when others have finished."""
        with self._lock:
            self._grants[live.request.request_id] = grant
            self._batch.ask(live.request.request_id, blocks)
            self._admit()

    def start(self, live: LiveRequest) -> None:
        """Hand a request whose KV is here to the step loop."""
        with self._changed:
            if self._closed is None:
                self._batch.start(live.request.request_id)
                self._changed.notify_all()

    def emit(self, live: LiveRequest, tokens: tuple[SampledToken, ...]) -> None:
        """Give out new tokens of a request that goes on."""
        with self._lock:
            self._tokens_generated += len(tokens)
        live.emit(tokens)

    def finish(
        self,
        live: LiveRequest,
        reason: FinishReason,
        *,
        tokens: tuple[SampledToken, ...] = (),
        error: WaveppError | None = None,
    ) -> None:
        """Give back a request's blocks, then its last output. Only the owner calls it."""
        with self._lock:
            self._tokens_generated += len(tokens)
            self._live.pop(live.request.request_id, None)
            self._grants.pop(live.request.request_id, None)
            self._batch.release(live.request.request_id)
            self._admit()
        live.emit(tokens, reason, error)

    def fail(self, live: LiveRequest, error: WaveppError) -> None:
        """Finish a request that something went wrong with."""
        if live.aborted:
            self.finish(live, "cancelled")
        else:
            self.finish(live, "error", error=error)

    def next_step(self) -> list[LiveRequest] | None:
        """The running requests, once there are any; None after ``close``."""
        with self._changed:
            self._changed.wait_for(lambda: self._batch.running or self._closed is not None)
            if self._closed is not None:
                return None
            return [self._live[request_id] for request_id in self._batch.running]

    def close(self, error: EngineDead) -> None:
        """Accept nothing more, stop the step loop, and give every live request an error; idempotent."""
        with self._changed:
            if self._closed is None:
                self._closed = error
            orphans = list(self._live.values())
            self._changed.notify_all()
        for live in orphans:
            live.emit((), "error", error)

    def counts(self) -> dict[str, int]:
        """``running``, ``waiting``, ``receiving``, ``used_blocks`` and ``total_blocks`` at one instant."""
        with self._lock:
            holding, running = len(self._batch.holding), len(self._batch.running)
            return {
                "running": running,
                "waiting": len(self._live) - holding,
                "receiving": holding - running,
                "used_blocks": self._batch.capacity - self._batch.free,
                "total_blocks": self._batch.capacity,
            }

    def check_at_rest(self, timeout: float) -> None:
        """Wait until no request is live, then check that all blocks are free.

        Raises:
            AuditError: requests are still live after ``timeout`` seconds, or the books are broken.
        """
        deadline = time.monotonic() + timeout
        while True:
            with self._lock:
                self._batch.check()
                held = sorted(self._live.keys() | set(self._batch.holding) | set(self._batch.waiting))
                if not held:
                    return
            if time.monotonic() > deadline:
                raise AuditError(
                    f"not at rest after {timeout:.0f} s: {len(held)} requests are live, such as {held[:8]}, "
                    f"and {self._batch.free} of {self._batch.capacity} blocks are free"
                )
            time.sleep(0.01)

    def _admit(self) -> None:
        for request_id, blocks in self._batch.admit():
            self._grants.pop(request_id)(blocks)

"""Which requests the decode engine has, who gets blocks next, and who runs; shared by its two threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from wavepp_worker.decode.batch import Batch
from wavepp_worker.decode.decoding_request import DecodingRequest
from wavepp_worker.decode.engine_io import FinishReason
from wavepp_worker.errors import AuditError, EngineDead, InvalidRequest, WaveppError
from wavepp_worker.model.sampled_token import SampledToken


class Scheduler:
    """Every live request, and the batch they make up. Thread-safe; outputs are given out outside its lock."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._live: dict[str, DecodingRequest] = {}
        self._grants: dict[str, Callable[[list[int]], None]] = {}
        self._closed: EngineDead | None = None
        self._tokens_generated = 0

    @property
    def tokens_generated(self) -> int:
        return self._tokens_generated

    def add(self, decoding: DecodingRequest) -> None:
        """Accept a request.

        Raises:
            InvalidRequest: its id is in use.
            EngineDead: ``close`` was called.
        """
        request_id = decoding.request_id
        with self._lock:
            if self._closed is not None:
                raise self._closed
            if request_id in self._live:
                raise InvalidRequest(f"request id {request_id} is in use; ids are unique among live requests")
            self._live[request_id] = decoding

    def abort(self, request_id: str) -> None:
        """Have the owner finish a request as cancelled; unknown ids are ignored."""
        with self._changed:
            decoding = self._live.get(request_id)
            if decoding is not None:
                decoding.aborted = True
                self._changed.notify_all()

    def ask_for_blocks(
        self, decoding: DecodingRequest, blocks: int, grant: Callable[[list[int]], None]
    ) -> None:
        """Queue for blocks; ``grant(blocks)`` comes under the lock, at once or when others have finished."""
        with self._lock:
            self._grants[decoding.request_id] = grant
            self._batch.ask(decoding.request_id, blocks, decoding.request.priority)
            self._admit()

    def start(self, decoding: DecodingRequest) -> None:
        """Hand a request whose KV is here to the step loop."""
        with self._changed:
            if self._closed is None:
                self._batch.start(decoding.request_id)
                self._changed.notify_all()

    def emit(self, decoding: DecodingRequest, tokens: tuple[SampledToken, ...]) -> None:
        """Give out new tokens of a request that goes on."""
        with self._lock:
            self._tokens_generated += len(tokens)
        decoding.emit(tokens)

    def finish(
        self,
        decoding: DecodingRequest,
        reason: FinishReason,
        *,
        tokens: tuple[SampledToken, ...] = (),
        error: WaveppError | None = None,
    ) -> None:
        """Give back a request's blocks, then its last output. Only the owner calls it."""
        with self._lock:
            self._tokens_generated += len(tokens)
            self._live.pop(decoding.request_id, None)
            self._grants.pop(decoding.request_id, None)
            self._batch.release(decoding.request_id)
            self._admit()
        decoding.emit(tokens, reason, error)

    def fail(self, decoding: DecodingRequest, error: WaveppError) -> None:
        """Finish a request that something went wrong with."""
        if decoding.aborted:
            self.finish(decoding, "cancelled")
        else:
            self.finish(decoding, "error", error=error)

    def next_step(self) -> list[DecodingRequest] | None:
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
        for decoding in orphans:
            decoding.emit((), "error", error)

    def queued(self) -> tuple[int, int]:
        """Requests that wait for blocks, which more decode workers would have, and the tokens of their prompts.

        Those that wait for their prefill are none: more decode workers would not help them.
        """
        with self._lock:
            prompts = [self._live[name].request.prompt_tokens for name in self._batch.waiting]
        return len(prompts), sum(prompts)

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
            self._live[request_id].state = self._batch.state(request_id)
            self._grants.pop(request_id)(blocks)

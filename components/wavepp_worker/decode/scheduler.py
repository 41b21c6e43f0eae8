"""Which requests the decode engine has, who gets blocks next, and who runs; shared by its two threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import torch

from wavepp_worker.decode.answer_lengths import AnswerLengths
from wavepp_worker.decode.batch import Batch, blocks_needed
from wavepp_worker.decode.decoding_request import DecodingRequest
from wavepp_worker.decode.engine_io import FinishReason
from wavepp_worker.decode.whereabouts import Place, Whereabouts, whereabouts
from wavepp_worker.errors import AuditError, EngineDead, InvalidRequest, WaveppError
from wavepp_worker.model.sampled_token import SampledToken

LOOK_SECONDS = 0.5
"""How often those who cannot run are looked at: whether they are too late, as nobody says so."""


class Scheduler:
    """Every live request, and the batch they make up. Thread-safe; outputs are given out outside its lock.

    Attributes:
        preemptions: how often a request has lost its blocks to another.
    """

    def __init__(self, batch: Batch, block_size: int) -> None:
        """``block_size``: tokens per block."""
        self._batch = batch
        self._block_size = block_size
        self._lengths = AnswerLengths()
        self._preempted: dict[str, DecodingRequest] = {}
        self.preemptions = 0
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

    def ask_for_blocks(self, decoding: DecodingRequest, grant: Callable[[list[int]], None]) -> None:
        """Queue for blocks; ``grant(blocks)`` comes under the lock, at once or when others have finished."""
        with self._changed:
            self._grants[decoding.request_id] = grant
            request = decoding.request
            self._batch.ask(
                decoding.request_id,
                self._wanted(decoding),
                request.priority,
                most=blocks_needed(request.prompt_tokens, request.max_tokens, self._block_size),
                early=not decoding.computed,
            )
            self._admit()

    def computed(self, decoding: DecodingRequest) -> None:
        """The prompt of a request is computed: it will not hold blocks for long without running."""
        with self._changed:
            decoding.computed = True
            self._batch.computed(decoding.request_id)
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
        if decoding.sequence.guide is not None:
            decoding.sequence.guide.cancel()
        with self._changed:
            self._tokens_generated += len(tokens)
            if reason in ("stop", "length"):
                self._lengths.ended(len(decoding.sequence.generated), cut=reason == "length")
            self._live.pop(decoding.request_id, None)
            self._grants.pop(decoding.request_id, None)
            self._preempted.pop(decoding.request_id, None)
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
        """Requests of the step loop that are over, else those that can run; waits for some; None after ``close``."""
        with self._changed:
            while self._closed is None:
                # First, as nobody is to be preempted for blocks that these are about to give back.
                over = [
                    each for each in self._of_step_loop() if each.aborted or time.monotonic() > each.deadline
                ]
                if over:
                    return over
                before = self.preemptions
                ready = self._with_room()
                if self.preemptions > before:
                    # More has come free than was missing.
                    self._admit()
                if ready:
                    return ready
                self._changed.wait(LOOK_SECONDS if self._batch.running or self._preempted else None)
            return None

    def _of_step_loop(self) -> list[DecodingRequest]:
        return [*map(self._live.__getitem__, self._batch.running), *self._preempted.values()]

    def _with_room(self) -> list[DecodingRequest]:
        """Those who run and have blocks for all their tokens.

        For who lacks some, what others do not need yet is taken back, and then the last in order is preempted. Who
        lacks some although nobody behind it runs waits for those who are about to.
        """
        running = self._batch.running_in_order
        behind, ready = list(running), []
        while behind:
            decoding = self._live[behind.pop(0)]
            missing = self._needed(decoding) - self._batch.held(decoding.request_id)
            if missing > self._batch.free:
                self._take_back(running, missing)
            while missing > self._batch.free and behind:
                self._preempt(self._live[behind.pop()])
            if missing <= 0:
                ready.append(decoding)
            elif missing <= self._batch.free:
                assert decoding.table is not None
                more = torch.tensor(self._batch.grow(decoding.request_id, missing), dtype=torch.int64)
                decoding.table = torch.cat([decoding.table, more])
                ready.append(decoding)
        return ready

    def _take_back(self, names: Sequence[str], missing: int) -> None:
        """Have so many blocks free, if others hold as many that they do not need yet; from the last in order first."""
        for name in reversed(names):
            if self._batch.free >= missing:
                return
            decoding = self._live[name]
            if decoding.table is not None and self._batch.held(name) > (needed := self._needed(decoding)):
                self._batch.shrink(name, needed)
                decoding.table = decoding.table[:needed]

    def _needed(self, decoding: DecodingRequest) -> int:
        """Blocks for all tokens that a request has, the newest included, which runs next."""
        return blocks_needed(decoding.sequence.length, 1, self._block_size)

    def _preempt(self, decoding: DecodingRequest) -> None:
        self.preemptions += 1
        decoding.table, decoding.state, decoding.logits = None, -1, None
        decoding.sequence.preempt()
        self._preempted[decoding.request_id] = decoding
        self._grants[decoding.request_id] = lambda blocks: self._go_on(decoding, blocks)
        self._batch.preempt(decoding.request_id, self._wanted(decoding))

    def _go_on(self, decoding: DecodingRequest, blocks: list[int]) -> None:
        del self._preempted[decoding.request_id]
        decoding.table = torch.tensor(blocks, dtype=torch.int64)
        self._batch.start(decoding.request_id)

    def _wanted(self, decoding: DecodingRequest) -> int:
        """Blocks for the tokens of a request, and for the answer that is expected of it from here on."""
        sequence = decoding.sequence
        most = decoding.request.max_tokens - len(sequence.generated)
        expected = max(self._lengths.expected() - len(sequence.generated), self._block_size)
        return blocks_needed(sequence.length, min(most, expected), self._block_size)

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

    def whereabouts(self, request_id: str | None, most: int) -> list[Whereabouts]:
        """Where a request is, or those that came first are, at most so many; nothing of who is not live."""
        with self._lock:
            named = self._live.keys() if request_id is None else [request_id]
            found = [self._live[name] for name in named if name in self._live]
            found.sort(key=lambda decoding: decoding.submitted)
            places, running, now = list(self._batch.waiting), set(self._batch.running), time.monotonic()
            return [
                whereabouts(
                    decoding,
                    Place(
                        ahead=places.index(name) if (name := decoding.request_id) in places else None,
                        wanted=self._batch.wanted(name),
                        free=self._batch.free,
                        runs=name in running,
                    ),
                    now,
                )
                for decoding in found[:most]
            ]

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
        # One that was preempted runs at once.
        self._changed.notify_all()

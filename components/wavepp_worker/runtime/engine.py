"""The prefill engine: the client of one replica's ranks, for offline use and for the Dynamo worker."""

from __future__ import annotations

import itertools
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import zmq

from wavepp_worker.errors import (
    AuditError,
    ConfigError,
    EngineDead,
    HandoffError,
    InvalidRequest,
    RequestAborted,
    RequestTimeout,
)
from wavepp_worker.handoff.interface import Offer
from wavepp_worker.model.info import ModelInfo, read_model_info
from wavepp_worker.model.sampling import SamplingParams, resolve_seed, validate
from wavepp_worker.runtime.config import EngineConfig
from wavepp_worker.runtime.index_feed import IndexFeed
from wavepp_worker.runtime.layout import WAIT_SECONDS, longest_prompt, pool_blocks, rank_configs
from wavepp_worker.runtime.live import LiveRequest
from wavepp_worker.runtime.messages import IndexDelta, PrefillRequest, PrefillResult
from wavepp_worker.runtime.outbox import Outbox
from wavepp_worker.runtime.processes import RankProcesses
from wavepp_worker.runtime.protocol import (
    Abort,
    Admitted,
    Audit,
    AuditReport,
    CacheChanges,
    Codec,
    Event,
    Finished,
    HandoffSettled,
    Heartbeat,
    RankFailed,
    RankReady,
    Released,
    Stop,
    Submit,
)

CLOSE_SECONDS = 10.0


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """Load and totals of an engine; block counts are of the fullest and the smallest rank."""

    queued: int
    running: int
    holding: int
    used_blocks: int
    total_blocks: int
    prompt_tokens: int
    reused_tokens: int
    finished: int
    failed: int
    waves: int
    rounds: int
    last_wave_age: float


class PrefillEngine:
    """One WavePP replica: ``pp`` rank processes, each with its own layers and its own cache.

    Use it as a context manager, or call ``start`` and ``close``. All methods are thread-safe. Callbacks come
    from the engine's own thread and must not block.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        on_index: Callable[[IndexDelta], None] | None = None,
        on_death: Callable[[str], None] | None = None,
    ) -> None:
        """Check the configuration against the model; nothing is started yet.

        Args:
            config: the replica's configuration.
            on_index: told what became reusable on all ranks, or stopped being so on the first.
            on_death: told, once, why the engine died.

        Raises:
            ConfigError: the configuration cannot work; the message names the key.
        """
        self.config = config
        self.info: ModelInfo = read_model_info(config.model)
        self.max_model_len = longest_prompt(config, self.info)
        self.total_blocks = min(pool_blocks(config))
        self._on_index = on_index
        self._on_death = on_death
        self._lock = threading.Lock()
        self._live: dict[str, LiveRequest] = {}
        self._ready: dict[int, RankReady] = {}
        self._beats: dict[int, tuple[float, Heartbeat]] = {}
        self._reports: dict[int, list[AuditReport]] = {}
        self._reported = threading.Condition(self._lock)
        self._audit_ids = itertools.count()
        self._names = itertools.count()
        self._index = IndexFeed(config.pp, config.block)
        self._totals = {"prompt_tokens": 0, "reused_tokens": 0, "finished": 0, "failed": 0}
        self._death: str | None = None
        self._misconfigured = False
        self._closing = threading.Event()
        self._all_ready = threading.Event()
        self._run_dir: Path | None = None
        self._processes: RankProcesses | None = None
        self._thread: threading.Thread | None = None
        self._commands: Outbox | None = None
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None

    def __enter__(self) -> PrefillEngine:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def alive(self) -> bool:
        """Started, not closed, and every rank lives."""
        return self._all_ready.is_set() and self._death is None and not self._closing.is_set()

    @property
    def rank_pids(self) -> list[int]:
        """Process ids of the ranks, in rank order."""
        return self._processes.pids if self._processes is not None else []

    def start(self) -> None:
        """Spawn the ranks and wait until all have loaded their layers and connected.

        Raises:
            ConfigError: the partition or the hand-off cannot work.
            EngineDead: a rank failed to start, or took longer than ``start_timeout``.
        """
        self._run_dir = Path(tempfile.mkdtemp(prefix="wavepp-"))
        try:
            configs = rank_configs(self.config, self.info, self._run_dir)
            self._context = zmq.Context()
            events = self._context.socket(zmq.PULL)
            events.set_hwm(0)
            events.bind(configs[0].events)
            self._commands = Outbox(self._context, configs[0].commands)
            self._thread = threading.Thread(target=self._serve, args=(events,), name="engine", daemon=True)
            self._thread.start()
            self._processes = RankProcesses(configs, self._rank_exited)
            if not self._all_ready.wait(self.config.start_timeout):
                missing = sorted(set(range(self.config.pp)) - set(self._ready))
                raise EngineDead(
                    f"ranks {missing} were not ready after start_timeout={self.config.start_timeout:.0f} s"
                )
            if self._death is not None:
                raise (ConfigError if self._misconfigured else EngineDead)(self._death)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop the ranks and fail whatever is in flight; idempotent, and bounded in time."""
        with self._lock:
            if self._closing.is_set():
                return
            self._closing.set()
        if self._processes is not None:
            self._processes.expect_exit()
        if self._commands is not None:
            if self._death is None and self._all_ready.is_set():
                self._commands.send(Stop())
                grace = CLOSE_SECONDS
            else:
                grace = 0.0
            if self._processes is not None:
                self._processes.close(grace)
            self._commands.close()
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)
        if self._context is not None:
            self._context.destroy(linger=0)
        if self._run_dir is not None:
            shutil.rmtree(self._run_dir, ignore_errors=True)
        self._fail_all(EngineDead("the engine was closed while the request was in flight"))

    def prefill(
        self,
        token_ids: Sequence[int],
        *,
        sampling: SamplingParams | None = None,
        top_logprobs: int | None = None,
        salt: str = "",
    ) -> PrefillResult:
        """Prefill one prompt and wait for its first token.

        Args:
            token_ids: the prompt.
            sampling: how the first token is chosen; greedy by default.
            top_logprobs: how many alternatives to report.
            salt: requests share KV only under equal salts.

        Raises:
            InvalidRequest: the prompt or a parameter is out of range.
            RequestTimeout: not finished within ``request_timeout``.
            EngineDead: a rank died.
        """
        params = sampling or SamplingParams()
        if top_logprobs is not None:
            params = msgspec.structs.replace(params, logprobs=top_logprobs)
        request = PrefillRequest(
            request_id=f"offline-{next(self._names)}",
            tokens=pack_tokens(token_ids),
            salt=salt,
            sampling=params,
        )
        return self.submit(request).result()

    def submit(self, request: PrefillRequest) -> Future[PrefillResult]:
        """Queue one request.

        The future fails with RequestAborted, RequestTimeout, HandoffError or EngineDead.

        Raises:
            InvalidRequest: the request is wrong, or its id is in use; nothing was queued.
            EngineDead: the engine is not running.
        """
        self._validate(request)
        request = msgspec.structs.replace(request, sampling=resolve_seed(request.sampling))
        future: Future[PrefillResult] = Future()
        future.set_running_or_notify_cancel()
        now = time.monotonic()
        with self._lock:
            if self._death is not None or self._commands is None or self._closing.is_set():
                raise EngineDead(self._death or "the engine is not running; call start() first")
            if request.request_id in self._live:
                raise InvalidRequest(
                    f"request id {request.request_id} is in use; ids are unique among live requests"
                )
            deadline = now + self.config.request_timeout
            self._live[request.request_id] = LiveRequest(request, future, now, deadline)
            self._commands.send(Submit(request=request))
        return future

    def abort(self, request_id: str) -> None:
        """Let go of a request in whatever state it is; unknown ids are ignored."""
        self._abort(request_id, RequestAborted(f"request {request_id} was aborted by its caller"))

    def offer(self, request_id: str) -> Offer:
        """Where a decode worker finds the KV of a live request submitted with ``handoff``.

        Raises:
            HandoffError: no such request, or this engine hands nothing off.
        """
        with self._lock:
            live = self._live.get(request_id)
        addresses = tuple(
            ready.handoff for _, ready in sorted(self._ready.items()) if ready.handoff is not None
        )
        if live is None or not live.request.handoff:
            raise HandoffError(f"request {request_id} is not live or was submitted without handoff")
        if len(addresses) != self.config.pp:
            raise HandoffError(f"this engine hands nothing off (handoff={self.config.handoff})")
        return Offer(
            request_id=request_id,
            prompt_tokens=live.request.prompt_tokens,
            model_id=self.info.model_id,
            ranks=addresses,
        )

    def stats(self) -> EngineStats:
        """Load as of the ranks' last heartbeats (twice a second), and totals since the start."""
        with self._lock:
            beats = [beat for _, (_, beat) in sorted(self._beats.items())]
            holding = sum(live.closed for live in self._live.values())
            running = len(self._live) - holding
            queued = min(beats[0].waiting, running) if beats else running
            return EngineStats(
                queued=queued,
                running=running - queued,
                holding=holding,
                used_blocks=max((beat.used_blocks for beat in beats), default=0),
                total_blocks=self.total_blocks,
                waves=beats[0].waves if beats else 0,
                rounds=beats[0].rounds if beats else 0,
                last_wave_age=max((beat.wave_age for beat in beats), default=0.0),
                **self._totals,
            )

    def audit(self, timeout: float = 30.0) -> dict[str, Any]:
        """Prove that nothing leaked: wait until nothing is in flight, then check every rank's books.

        Returns:
            ``{"ranks": [{"rank", "capacity", "free", "reusable"}, …]}``.

        Raises:
            AuditError: a rank's books are broken, or something is still held after ``timeout`` seconds.
            EngineDead: the engine is not running.
        """
        deadline = time.monotonic() + timeout
        while True:
            reports = self._gather_reports(deadline)
            broken = [f"rank {report.rank}: {text}" for report in reports for text in report.problems]
            if broken:
                raise AuditError("; ".join(broken))
            held = [
                f"rank {report.rank} knows {len(report.live)} requests {list(report.live[:4])} and has "
                f"{report.free} free + {report.reusable} reusable of {report.capacity} blocks"
                for report in reports
                if report.live or report.free + report.reusable != report.capacity
            ]
            with self._lock:
                live = sorted(self._live)
            if not held and not live:
                return {
                    "ranks": [
                        {
                            "rank": report.rank,
                            "capacity": report.capacity,
                            "free": report.free,
                            "reusable": report.reusable,
                        }
                        for report in reports
                    ]
                }
            if time.monotonic() > deadline:
                if live:
                    held.append(f"the engine still has {len(live)} requests: {live[:8]}")
                raise AuditError(f"not at rest after {timeout:.0f} s: " + "; ".join(held))
            time.sleep(0.02)

    def _validate(self, request: PrefillRequest) -> None:
        count = request.prompt_tokens
        if count == 0:
            raise InvalidRequest("the prompt is empty; give at least one token")
        if count > self.max_model_len:
            raise InvalidRequest(
                f"the prompt has {count} tokens, this worker accepts at most {self.max_model_len}"
            )
        highest = int(np.frombuffer(request.tokens, dtype="<u4").max())
        if highest >= self.info.vocab_size:
            raise InvalidRequest(
                f"token id {highest} is outside the vocabulary of {self.info.vocab_size} tokens"
            )
        validate(request.sampling, self.config.top_logprobs)

    def _abort(self, request_id: str, error: Exception) -> None:
        with self._lock:
            live = self._live.get(request_id)
            if live is None or live.aborted or self._commands is None:
                return
            live.aborted = True
            self._commands.send(Abort(request_id=request_id))
            was_closed, live.closed = live.closed, True
            self._totals["failed"] += not was_closed
        if not was_closed:
            live.future.set_exception(error)

    def _gather_reports(self, deadline: float) -> list[AuditReport]:
        with self._reported:
            if not self.alive or self._commands is None:
                raise EngineDead(self._death or "the engine is not running")
            audit_id = next(self._audit_ids)
            reports = self._reports.setdefault(audit_id, [])
            self._commands.send(Audit(audit_id=audit_id))
            self._reported.wait_for(
                lambda: len(reports) == self.config.pp or self._death is not None,
                max(1.0, deadline - time.monotonic()),
            )
            del self._reports[audit_id]
            if self._death is not None:
                raise EngineDead(self._death)
            if len(reports) < self.config.pp:
                heard = sorted(report.rank for report in reports)
                raise AuditError(f"only ranks {heard} of {self.config.pp} reported their books in time")
            return sorted(reports, key=lambda report: report.rank)

    def _serve(self, events: zmq.Socket[bytes]) -> None:
        next_check = 0.0
        while not self._closing.is_set():
            if events.poll(100):
                self._handle(Codec.event.decode(events.recv()))
            if time.monotonic() > next_check:
                self._check_deadlines()
                next_check = time.monotonic() + 0.1
        events.close(linger=0)

    def _check_deadlines(self) -> None:
        now = time.monotonic()
        with self._lock:
            late = [live for live in self._live.values() if now > live.deadline and not live.future.done()]
            silent = [rank for rank, (heard, _) in self._beats.items() if now - heard > WAIT_SECONDS]
        for live in late:
            self._abort(
                live.request.request_id,
                RequestTimeout(
                    f"request {live.request.request_id} did not finish within "
                    f"request_timeout={self.config.request_timeout:.0f} s"
                ),
            )
        if silent:
            self._die(f"rank {silent[0]} has not been heard of for {WAIT_SECONDS:.0f} s")

    def _handle(self, event: Event) -> None:
        match event:
            case RankReady():
                self._ready[event.rank] = event
                if len(self._ready) == self.config.pp:
                    self._all_ready.set()
            case RankFailed():
                self._misconfigured = event.config
                self._die(event.reason if event.config else f"rank {event.rank} failed: {event.reason}")
            case Heartbeat():
                with self._lock:
                    self._beats[event.rank] = (time.monotonic(), event)
            case CacheChanges():
                for delta in self._index.apply(event):
                    if self._on_index is not None:
                        self._on_index(delta)
            case AuditReport():
                with self._reported:
                    if event.audit_id in self._reports:
                        self._reports[event.audit_id].append(event)
                        self._reported.notify_all()
            case Admitted() | Finished() | Released() | HandoffSettled():
                self._progress(event)

    def _progress(self, event: Admitted | Finished | Released | HandoffSettled) -> None:
        unwanted = False
        with self._lock:
            live = self._live.get(event.request_id)
            if live is None:
                return
            match event:
                case Admitted():
                    live.admitted = event
                case Finished():
                    live.finished = event
                    live.answered = time.monotonic()
                case Released():
                    live.released = True
                case HandoffSettled():
                    live.settled.add(event.rank)
                    unwanted = event.outcome in ("expired", "failed") and not live.closed
            answer = None if live.closed else live.result()
            if answer is not None:
                live.closed = True
                self._totals["finished"] += 1
                self._totals["prompt_tokens"] += answer.prompt_tokens
                self._totals["reused_tokens"] += answer.reused_tokens
            if live.over(self.config.pp):
                del self._live[event.request_id]
        if answer is not None:
            live.future.set_result(answer)
        if unwanted:
            text = f"no decode worker took the KV of request {event.request_id} in time"
            self._abort(event.request_id, HandoffError(text))

    def _rank_exited(self, rank: int, code: int) -> None:
        self._die(f"rank {rank} exited with code {code}")

    def _die(self, reason: str) -> None:
        with self._lock:
            if self._death is not None or self._closing.is_set():
                return
            self._death = reason
            self._reported.notify_all()
        if self._processes is not None:
            self._processes.kill()
        self._fail_all(EngineDead(reason))
        started = self._all_ready.is_set()
        self._all_ready.set()
        if started and self._on_death is not None:
            self._on_death(reason)

    def _fail_all(self, error: EngineDead) -> None:
        with self._lock:
            futures = [live.future for live in self._live.values() if not live.closed]
            self._live.clear()
            self._totals["failed"] += len(futures)
        for future in futures:
            future.set_exception(error)


def pack_tokens(token_ids: Sequence[int]) -> bytes:
    """Token ids as little-endian uint32.

    Raises:
        InvalidRequest: an id is negative or does not fit 32 bits.
    """
    try:
        ids = np.asarray(token_ids, dtype=np.int64)
    except (OverflowError, TypeError, ValueError) as error:
        raise InvalidRequest(f"token ids must be integers: {error}") from error
    if ids.ndim != 1:
        raise InvalidRequest("token ids must be one flat list of integers")
    if len(ids) and (ids.min() < 0 or ids.max() >= 2**32):
        bad = next(int(token) for token in ids if not 0 <= token < 2**32)
        raise InvalidRequest(f"token id {bad} is not an unsigned 32-bit number")
    return ids.astype("<u4").tobytes()

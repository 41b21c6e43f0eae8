"""The prefill engine: the client of one replica's ranks, for offline use and for the Dynamo worker."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import msgspec

from wavepp_worker.errors import (
    AuditError,
    ConfigError,
    EngineDead,
    HandoffError,
    RequestAborted,
    RequestTimeout,
)
from wavepp_worker.handoff.offer import Offer
from wavepp_worker.model.model_info import ModelInfo, read_model_info
from wavepp_worker.model.sampling import SamplingParams, resolve_seed, validate
from wavepp_worker.runtime.client.audit import require_sound, still_held, summary
from wavepp_worker.runtime.client.index_feed import IndexFeed
from wavepp_worker.runtime.client.prompts import check_prompt, pack_tokens
from wavepp_worker.runtime.client.rank_layout import WAIT_SECONDS, longest_prompt, pool_blocks
from wavepp_worker.runtime.client.rank_link import RankLink
from wavepp_worker.runtime.client.request_ledger import Ledger
from wavepp_worker.runtime.protocol.commands import Abort, Audit, Submit
from wavepp_worker.runtime.protocol.engine_config import EngineConfig
from wavepp_worker.runtime.protocol.events import (
    AuditReport,
    CacheChanges,
    Event,
    Heartbeat,
    RankFailed,
    RankReady,
)
from wavepp_worker.runtime.protocol.requests import EngineStats, IndexDelta, PrefillRequest, PrefillResult


class PrefillEngine:
    """One WavePP replica: ``pp`` rank processes, each with its own layers and its own cache.

    Use it as a context manager, or call ``start`` and ``close``. All methods are thread-safe. Callbacks come
    from the engine's own threads and must not block.
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
        self._ledger = Ledger(config.pp)
        self._index = IndexFeed(config.pp, config.block_size)
        self._ready: dict[int, RankReady] = {}
        self._beats: dict[int, tuple[float, Heartbeat]] = {}
        self._reports: dict[int, list[AuditReport]] = {}
        self._reported = threading.Condition(self._lock)
        self._numbers = itertools.count()
        self._death: EngineDead | ConfigError | None = None
        self._closed = False
        self._started = threading.Event()
        self._link: RankLink | None = None

    def __enter__(self) -> PrefillEngine:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def alive(self) -> bool:
        """Started, not closed, and every rank lives."""
        return self._started.is_set() and self._death is None and not self._closed

    @property
    def rank_pids(self) -> list[int]:
        """Process ids of the ranks, in rank order."""
        return self._link.pids if self._link is not None else []

    def start(self) -> None:
        """Spawn the ranks and wait until all have loaded their layers and connected.

        Raises:
            ConfigError: the partition, the device or the hand-off cannot work.
            EngineDead: a rank failed to start, or took longer than ``start_timeout``.
        """
        try:
            self._link = RankLink(
                self.config,
                self.info,
                self._handle,
                self._check_deadlines,
                self._rank_exited,
                self._cannot_go_on,
            )
            if not self._started.wait(self.config.start_timeout):
                missing = sorted(set(range(self.config.pp)) - set(self._ready))
                raise EngineDead(
                    f"ranks {missing} were not ready after start_timeout={self.config.start_timeout:.0f} s"
                )
            if self._death is not None:
                raise self._death
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop the ranks and fail whatever is in flight; idempotent, and bounded in time."""
        graceful = self.alive
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if self._link is not None:
            self._link.close(graceful)
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
            request_id=f"offline-{next(self._numbers)}",
            tokens=pack_tokens(token_ids),
            salt=salt,
            sampling=params,
        )
        return self.submit(request).result()

    def submit(
        self, request: PrefillRequest, on_admitted: Callable[[], None] | None = None
    ) -> Future[PrefillResult]:
        """Queue one request.

        The future fails with RequestAborted, RequestTimeout, HandoffError or EngineDead.

        Args:
            on_admitted: called from the engine's thread once all ranks hold room for the request. Offering
                it to a decode worker earlier could pin decode blocks for a prefill that waits for room.

        Raises:
            InvalidRequest: the request is wrong, or its id is in use; nothing was queued.
            EngineDead: the engine is not running.
        """
        check_prompt(request.tokens, self.max_model_len, self.info.vocab_size)
        validate(request.sampling, self.config.top_logprobs)
        request = msgspec.structs.replace(request, sampling=resolve_seed(request.sampling))
        now = time.monotonic()
        with self._lock:
            link = self._running_link()
            future = self._ledger.accept(request, now, now + self.config.request_timeout, on_admitted)
            link.send(Submit(request=request))
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
            live = self._ledger.get(request_id)
        if live is None or not live.request.handoff:
            raise HandoffError(f"request {request_id} is not live or was submitted without handoff")
        ready = [self._ready[rank].handoff for rank in range(self.config.pp)]
        ranks = tuple(address for address in ready if address is not None)
        if len(ranks) != self.config.pp:
            raise HandoffError(f"this engine hands nothing off (handoff={self.config.handoff})")
        return Offer(
            request_id=request_id,
            prompt_tokens=live.request.prompt_tokens,
            model_id=self.info.model_id,
            ranks=ranks,
        )

    def stats(self) -> EngineStats:
        """Load as of the ranks' last heartbeats (twice a second), and totals since the start."""
        with self._lock:
            beats = [beat for _, (_, beat) in sorted(self._beats.items())]
            unanswered = self._ledger.unanswered()
            queued = min(beats[0].waiting, unanswered) if beats else unanswered
            return EngineStats(
                queued=queued,
                running=unanswered - queued,
                holding=self._ledger.holding(),
                used_blocks=max((beat.used_blocks for beat in beats), default=0),
                total_blocks=self.total_blocks,
                prompt_tokens=self._ledger.prompt_tokens,
                reused_tokens=self._ledger.reused_tokens,
                finished=self._ledger.finished,
                failed=self._ledger.failed,
                waves=beats[0].waves if beats else 0,
                rounds=beats[0].rounds if beats else 0,
                last_wave_age=max((beat.wave_age for beat in beats), default=0.0),
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
            require_sound(reports)
            with self._lock:
                live = self._ledger.live_ids()
            held = still_held(reports, live)
            if not held:
                return summary(reports)
            if time.monotonic() > deadline:
                raise AuditError(f"not at rest after {timeout:.0f} s: " + "; ".join(held))
            time.sleep(0.02)

    def _running_link(self) -> RankLink:
        if self._death is not None:
            raise EngineDead(str(self._death))
        if self._link is None or self._closed:
            raise EngineDead("the engine is not running; call start() first")
        return self._link

    def _abort(self, request_id: str, error: Exception) -> None:
        with self._lock:
            known, future = self._ledger.abort(request_id)
            if known and self._link is not None and not self._closed:
                self._link.send(Abort(request_id=request_id))
        if future is not None:
            future.set_exception(error)

    def _gather_reports(self, deadline: float) -> list[AuditReport]:
        with self._reported:
            link = self._running_link()
            audit_id = next(self._numbers)
            reports = self._reports.setdefault(audit_id, [])
            link.send(Audit(audit_id=audit_id))
            self._reported.wait_for(
                lambda: len(reports) == self.config.pp or self._death is not None,
                max(1.0, deadline - time.monotonic()),
            )
            del self._reports[audit_id]
            self._running_link()
            if len(reports) < self.config.pp:
                heard = sorted(report.rank for report in reports)
                raise AuditError(f"only ranks {heard} of {self.config.pp} reported their books in time")
            return sorted(reports, key=lambda report: report.rank)

    def _check_deadlines(self) -> None:
        now = time.monotonic()
        with self._lock:
            late = self._ledger.late(now)
            silent = [rank for rank, (heard, _) in self._beats.items() if now - heard > WAIT_SECONDS]
        for request_id in late:
            limit = f"request_timeout={self.config.request_timeout:g} s"
            self._abort(request_id, RequestTimeout(f"request {request_id} did not finish within {limit}"))
        if silent:
            self._die(EngineDead(f"rank {silent[0]} has not been heard of for {WAIT_SECONDS:.0f} s"))

    def _handle(self, event: Event) -> None:
        match event:
            case RankReady():
                self._ready[event.rank] = event
                if len(self._ready) == self.config.pp:
                    self._started.set()
            case RankFailed(config=True):
                self._die(ConfigError(event.reason))
            case RankFailed():
                self._die(EngineDead(f"rank {event.rank} failed: {event.reason}"))
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
            case _:
                with self._lock:
                    outcome = self._ledger.progress(event, time.monotonic())
                if outcome.on_admitted is not None:
                    outcome.on_admitted()
                if outcome.future is not None and outcome.answer is not None:
                    outcome.future.set_result(outcome.answer)
                if outcome.unwanted is not None:
                    text = f"no decode worker took the KV of request {outcome.unwanted} in time"
                    self._abort(outcome.unwanted, HandoffError(text))

    def _rank_exited(self, rank: int, code: int) -> None:
        self._die(EngineDead(f"rank {rank} exited with code {code}"))

    def _cannot_go_on(self, error: Exception) -> None:
        self._die(EngineDead(f"a rank's event could not be handled: {type(error).__name__}: {error}"))

    def _die(self, reason: EngineDead | ConfigError) -> None:
        with self._lock:
            if self._death is not None or self._closed:
                return
            self._death = reason
            self._reported.notify_all()
        if self._link is not None:
            self._link.kill()
        self._fail_all(EngineDead(str(reason)))
        running = self._started.is_set()
        self._started.set()
        if running and self._on_death is not None:
            self._on_death(str(reason))

    def _fail_all(self, error: EngineDead) -> None:
        with self._lock:
            futures = self._ledger.drop_all()
        for future in futures:
            future.set_exception(error)

"""A prefill engine with its bootstrap server: what the prefill worker and the agg worker share."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future

import msgspec
from dynamo.common.backend.engine import GenerateChunk, LlmRegistration
from dynamo.common.backend.publisher import ComponentSnapshot

from wavepp_worker.dynamo.bootstrap_info import advertised_host, failure_reason
from wavepp_worker.dynamo.canary import Canary
from wavepp_worker.dynamo.control_bodies import Control
from wavepp_worker.dynamo.generate_chunks import probe_chunk
from wavepp_worker.dynamo.load_snapshots import load_snapshot
from wavepp_worker.dynamo.metrics import PrefillMetrics
from wavepp_worker.dynamo.prefill_controls import PrefillControls
from wavepp_worker.dynamo.prefill_tracing import PrefillTracing, TracedPrefill
from wavepp_worker.dynamo.request_parser import ParsedRequest, RequestLimits
from wavepp_worker.dynamo.tracer import Tracer
from wavepp_worker.errors import ConfigError, HandoffError, InvalidRequest, WaveppError
from wavepp_worker.handoff.offer import BootstrapAddress, FirstToken
from wavepp_worker.handoff.prefill.bootstrap_server import BootstrapServer
from wavepp_worker.model.grammar.judge import GrammarJudge
from wavepp_worker.request_checks import check_allowed
from wavepp_worker.runtime.client.engine import PrefillEngine
from wavepp_worker.runtime.protocol.engine_config import EngineConfig
from wavepp_worker.runtime.protocol.index_delta import IndexDelta
from wavepp_worker.runtime.protocol.load import PrefillPass
from wavepp_worker.runtime.protocol.requests import HandedOff, PrefillRequest, PrefillResult
from wavepp_worker.worker_description import EngineDescription

POLL_SECONDS = 0.05
"""How often a waiting request looks whether its caller gave up."""

CLAIM_SECONDS = 20.0
"""How long KV waits for a claim: where the client left before decode was asked, none ever comes."""


class PrefillHandler:
    """Prefills requests and tells whoever claims their bootstrap rooms what came of it.

    Attributes:
        engine: the replica's ranks.
        metrics: of the engine and of how prefills ended.
        limits: what a request is measured against.
        bootstrap: once started.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        bootstrap_port: int,
        on_index: Callable[[IndexDelta], None],
        on_death: Callable[[str], None],
        on_pass: Callable[[PrefillPass], None] | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        """Check the configuration; nothing is started yet.

        Raises:
            ConfigError: it cannot work; the message names the key.
        """
        self._config = config
        self._port = bootstrap_port
        self._lock = threading.Lock()
        self._bootstrap_rooms: set[int] = set()
        self.engine = PrefillEngine(
            config, on_index=on_index, on_death=on_death, on_handed_off=self._handed_off, on_pass=on_pass
        )
        self._canary = Canary(self.engine)
        self._judge = GrammarJudge(config.model, self.engine.info.vocab_size)
        self.metrics = PrefillMetrics(self.engine.stats, self._pending_bootstrap_rooms)
        self._controls = PrefillControls(self.engine, self.metrics)
        self._tracing = PrefillTracing(tracer)
        self.limits = RequestLimits(
            self.engine.max_model_len,
            self.engine.info.vocab_size,
            config.top_logprobs,
            frozenset(self.engine.adapters),
        )
        self.bootstrap: BootstrapServer | None = None

    def start(self) -> None:
        """Start the server and the ranks; blocks until both are ready.

        Raises:
            ConfigError: the port is in use, or the partition or the hand-off cannot work.
            EngineDead: a rank failed to start.
        """
        try:
            self.bootstrap = BootstrapServer(
                self._config.host, self._port, on_cancel=self.engine.withdraw, keep=CLAIM_SECONDS
            )
        except HandoffError as error:
            raise ConfigError(f"--bootstrap-port and --host: {error}") from error
        self.engine.start()

    def registration(self) -> LlmRegistration:
        """What Dynamo's router and frontend are told of a replica: its smallest rank bounds it."""
        return LlmRegistration(
            context_length=self.engine.max_model_len,
            kv_cache_block_size=self._config.block_size,
            total_kv_blocks=self.engine.total_blocks,
            max_num_seqs=self._config.max_num_seqs,
            max_num_batched_tokens=self._config.max_num_batched_tokens,
        )

    def describe(self) -> EngineDescription:
        """The engine, and where its hand-offs are claimed; raises as ``PrefillEngine.describe``."""
        assert self.bootstrap is not None
        return msgspec.structs.replace(
            self.engine.describe(), bootstrap=f"{self._config.host}:{self.bootstrap.port}"
        )

    def snapshot(self) -> ComponentSnapshot:
        """The replica's load."""
        stats = self.engine.stats()
        return load_snapshot(
            stats.used_blocks,
            stats.total_blocks,
            prompt_tokens=stats.prompt_tokens,
            reused_tokens=stats.reused_tokens,
        )

    def address(self, bootstrap_room: int) -> BootstrapAddress:
        """Where ``bootstrap_room`` can be claimed."""
        assert self.bootstrap is not None
        return BootstrapAddress(
            host=self._config.host,
            port=self.bootstrap.port,
            room=bootstrap_room,
            secret=self.bootstrap.secret(bootstrap_room),
        )

    def bootstrap_host(self) -> str:
        """What the frontend is to tell decode workers, for the rooms it chooses itself."""
        assert self.bootstrap is not None
        return advertised_host(self._config.host, self.bootstrap.key)

    async def request(self, request_id: str, parsed: ParsedRequest) -> PrefillRequest:
        """What to submit for a parsed request, to be handed off.

        Raises:
            InvalidRequest: what its answer must match is wrong or too complex, or leaves nothing to begin with.
            RequestFailed: that cannot be found out.
        """
        request = prefill_request(request_id, parsed, handoff=True)
        if parsed.grammar is None:
            return request
        allowed = await asyncio.wrap_future(self._judge.judge(parsed.grammar))
        check_allowed(allowed, request.banned, self.limits.vocab_size)
        return msgspec.structs.replace(request, allowed=allowed)

    async def prefill(
        self,
        request: PrefillRequest,
        bootstrap_room: int,
        is_stopped: Callable[[], bool],
        on_admitted: Callable[[], None] | None = None,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> PrefillResult:
        """Prefill a request and announce it in its bootstrap room, the result or the failure too.

        Args:
            request: submitted with ``handoff``.
            bootstrap_room: where the decode worker will ask.
            is_stopped: whether the caller gave up; looked at while waiting.
            on_admitted: called from the engine's thread once all ranks hold room for it.
            headers: of the span above it, where that is traced.

        Raises:
            InvalidRequest: the bootstrap room is in use, or as of the engine.
            RequestAborted, RequestFailed, RequestTimeout, HandoffError, EngineDead: as of the engine.
        """
        with self._tracing.begun(request, headers) as traced:
            result = await self._prefill(traced, bootstrap_room, is_stopped, on_admitted)
            traced.answered(result)
        return result

    async def _prefill(
        self,
        traced: TracedPrefill,
        bootstrap_room: int,
        is_stopped: Callable[[], bool],
        on_admitted: Callable[[], None] | None,
    ) -> PrefillResult:
        assert self.bootstrap is not None
        bootstrap, request = self.bootstrap, traced.request
        with self._lock:
            if bootstrap_room in self._bootstrap_rooms:
                # A router that replays a request must not disturb the one that runs.
                raise InvalidRequest(
                    f"bootstrap_room {bootstrap_room} of request {request.request_id} is in use already"
                )
            self._bootstrap_rooms.add(bootstrap_room)
        try:
            admitted = threading.Event()

            def let_decode_allocate() -> None:
                admitted.set()
                bootstrap.open(bootstrap_room)
                if on_admitted is not None:
                    on_admitted()

            future = self.engine.submit(request, let_decode_allocate)
            try:
                offer = self.engine.offer(request.request_id)
                offered_bytes = sum(rank.size(request.prompt_tokens) for rank in offer.ranks)
                self._tracing.submitted(traced, offered_bytes)
                bootstrap.register(bootstrap_room, offer, hold=True)
                if admitted.is_set():
                    bootstrap.open(bootstrap_room)
                result = await self._wait(future, request.request_id, is_stopped)
            except BaseException:
                self.engine.abort(request.request_id)
                raise
            bootstrap.finish(
                bootstrap_room, FirstToken(first=result.first, reused_tokens=result.reused_tokens)
            )
        except WaveppError as error:
            self._fail(bootstrap_room, error)
            self.metrics.failed(error)
            raise
        except BaseException:
            bootstrap.fail(bootstrap_room, "the prefill worker gave the request up")
            raise
        finally:
            with self._lock:
                self._bootstrap_rooms.discard(bootstrap_room)
        self.metrics.finished(result, offered_bytes=offered_bytes)
        return result

    async def prefill_alone(
        self,
        request: PrefillRequest,
        is_stopped: Callable[[], bool],
        on_admitted: Callable[[], None] | None = None,
    ) -> PrefillResult:
        """Prefill a request whose KV nobody comes for; arguments as of ``prefill``.

        Raises:
            InvalidRequest, RequestAborted, RequestFailed, RequestTimeout, EngineDead: as of the engine.
        """
        try:
            future = self.engine.submit(request, on_admitted)
            try:
                result = await self._wait(future, request.request_id, is_stopped)
            except BaseException:
                self.engine.abort(request.request_id)
                raise
        except WaveppError as error:
            self.metrics.failed(error)
            raise
        self.metrics.finished(result, offered_bytes=0)
        return result

    def abandon(self, bootstrap_room: int) -> None:
        """Nobody will claim the room, whether its prefill is done or not; ignored if somebody has claimed it."""
        assert self.bootstrap is not None
        self.bootstrap.abandon(bootstrap_room)

    def refused(self, bootstrap_room: int | None, error: WaveppError) -> None:
        """A request was refused before ``prefill``; whoever claims its ``bootstrap_room`` is told why.

        Not if the room is another request's, which goes on.
        """
        self.metrics.failed(error)
        if bootstrap_room is not None and bootstrap_room not in self._bootstrap_rooms:
            self._fail(bootstrap_room, error)

    def _handed_off(self, ended: HandedOff) -> None:
        self.metrics.handed_off(ended)
        self._tracing.handed_off(ended)

    def _fail(self, bootstrap_room: int, error: WaveppError) -> None:
        if self.bootstrap is not None:
            self.bootstrap.fail(bootstrap_room, failure_reason(error))

    def controls(self) -> dict[str, Control]:
        """What an operator may ask where prompts are prefilled; see ``WaveppWorker.controls``."""
        return self._controls.by_name()

    async def probe(self, parsed: ParsedRequest) -> GenerateChunk:
        """The answer to a health probe; see ``Canary``.

        Raises:
            WaveppError: the engine does not run.
        """
        await self._canary.prove(prefill_request("", parsed, handoff=False))
        return probe_chunk(parsed.prompt_tokens)

    def close(self) -> None:
        """Stop both; idempotent, also if never started."""
        if self.bootstrap is not None:
            self.bootstrap.close()
        self._judge.close()
        self.engine.close()

    async def _wait(
        self, future: Future[PrefillResult], request_id: str, is_stopped: Callable[[], bool]
    ) -> PrefillResult:
        waiting = asyncio.wrap_future(future)
        try:
            while not waiting.done():
                await asyncio.wait({waiting}, timeout=POLL_SECONDS)
                if not waiting.done() and is_stopped():
                    self.engine.abort(request_id)
            return waiting.result()
        finally:
            waiting.cancel()

    def _pending_bootstrap_rooms(self) -> int:
        return self.bootstrap.awaited() if self.bootstrap is not None else 0


def prefill_request(request_id: str, parsed: ParsedRequest, *, handoff: bool) -> PrefillRequest:
    """What to submit for a parsed request that has no grammar; ``handoff`` unless it is a probe."""
    return PrefillRequest(
        request_id=request_id,
        tokens=parsed.tokens,
        salt=parsed.salt,
        lora=parsed.lora,
        sampling=parsed.sampling,
        handoff=handoff,
        banned=parsed.banned_first,
        priority=parsed.priority,
    )

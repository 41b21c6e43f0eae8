"""One worker that prefills and decodes: ``python -m wavepp_worker.dynamo.agg``."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec
from dynamo._core import Context
from dynamo.common.backend.engine import EngineConfig as Registration
from dynamo.common.backend.engine import GenerateChunk, GenerateRequest
from dynamo.common.backend.health_check import is_probe
from dynamo.common.backend.publisher import ComponentSnapshot, KvEventSource, ZmqSource
from dynamo.common.backend.worker import WorkerConfig
from dynamo.common.constants import DisaggregationMode
from prometheus_client import CollectorRegistry

from wavepp_worker.dynamo.args import AggArgs
from wavepp_worker.dynamo.bootstrap_info import fresh_bootstrap_room
from wavepp_worker.dynamo.control_bodies import Control
from wavepp_worker.dynamo.decode_handler import DecodeHandler
from wavepp_worker.dynamo.generate_chunks import cancelled_chunk
from wavepp_worker.dynamo.intake_metrics import RemoteMetrics
from wavepp_worker.dynamo.job_router import JobRouter
from wavepp_worker.dynamo.kv_event_thread import KvEventThread
from wavepp_worker.dynamo.prefill_handler import PrefillHandler
from wavepp_worker.dynamo.request_parser import ParsedRequest, RequestLimits, parse_request
from wavepp_worker.dynamo.run_worker import run_worker, worker_config
from wavepp_worker.dynamo.runtime_args import JOBS_ALONE
from wavepp_worker.dynamo.sampling_options import default_sampling
from wavepp_worker.dynamo.worker import WaveppWorker
from wavepp_worker.errors import (
    HandoffError,
    HandoffMismatch,
    InvalidRequest,
    JobTooLarge,
    QueueError,
    RequestAborted,
    RequestFailed,
    WaveppError,
    WorkerPaused,
    WorkerStarting,
)
from wavepp_worker.intake.names import QueueName
from wavepp_worker.intake.remote_prefill import RemotePrefill
from wavepp_worker.log_form import of_request
from wavepp_worker.model.lora import adapter_paths
from wavepp_worker.runtime.protocol.requests import PrefillResult
from wavepp_worker.worker_description import EngineDescription

logger = logging.getLogger(__name__)


class AggWorker(WaveppWorker):
    """A replica of prefill ranks and a decode engine in one worker, KV handed over between them."""

    mode = DisaggregationMode.AGGREGATED

    def __init__(self, args: AggArgs) -> None:
        """Check the configuration against the model; nothing is started yet.

        Raises:
            ConfigError: it cannot work; the message names the key.
        """
        super().__init__(args.runtime, adapter_paths(args.engine.lora_modules))
        self._model = args.engine.model
        self._kv_events = KvEventThread(args.engine.block_size)
        self._prefill = PrefillHandler(
            args.engine,
            bootstrap_port=args.runtime.bootstrap_port,
            on_index=self._kv_events.on_index,
            on_death=self.engine_died,
            on_pass=self.passes.on_pass,
            tracer=self.tracer,
        )
        self._decode = DecodeHandler(
            args.decode, on_death=self.engine_died, on_step=self.passes.on_step, tracer=self.tracer
        )
        prefill, decode = self._prefill.limits, self._decode.limits
        self._limits = RequestLimits(
            min(prefill.max_model_len, decode.max_model_len),
            prefill.vocab_size,
            min(prefill.top_logprobs, decode.top_logprobs),
            prefill.adapters & decode.adapters,
        )
        self._defaults = default_sampling(args.engine.model)
        self._remote: RemotePrefill | None = None
        self._job_router: JobRouter | None = None
        if args.remote.remote_prefill == "nats":
            name = QueueName(args.runtime.namespace, args.runtime.served_model_name)
            etcd = args.runtime.options.discovery_backend == "etcd"
            path = (
                args.remote.remote_prefill_endpoint
                or f"{args.runtime.namespace}{JOBS_ALONE}.prefill.generate"
            )
            self._job_router = JobRouter(args.runtime, path, args.engine.block_size)
            self._remote = RemotePrefill(args.remote, name, self._job_router, etcd=etcd)
            self._prefill.metrics.show(RemoteMetrics(self._remote))

    @classmethod
    async def from_args(cls, argv: list[str] | None = None) -> tuple[AggWorker, WorkerConfig]:
        args = AggArgs.parse_or_exit(argv)
        config = worker_config(args.runtime, str(args.engine.model), cls.mode)
        return cls(args), config

    def open(self) -> Registration:
        self._kv_events.start()
        self._prefill.start()
        self._decode.engine.start()
        return Registration(
            model=str(self._model),
            served_model_name=self._runtime.served_model_name,
            llm=dataclasses.replace(self._prefill.registration(), context_length=self._limits.max_model_len),
        )

    def close(self) -> None:
        self._kv_events.close()
        self._decode.engine.close()
        self._prefill.close()

    async def start(self, worker_id: int) -> Registration:
        """As of every worker; the queue may come later."""
        registration = await super().start(worker_id)
        if self._remote is not None:
            try:
                await self._remote.open()
            except WaveppError as error:
                self.start_error = error
                raise
        return registration

    async def cleanup(self) -> None:
        """As of every worker."""
        await super().cleanup()
        if self._remote is not None:
            await self._remote.close()

    async def on_endpoint_ready(self, endpoint: Any) -> None:
        """As of every worker; the router over those that take jobs needs Dynamo's runtime."""
        await super().on_endpoint_ready(endpoint)
        if self._job_router is not None:
            await self._job_router.open()

    def controls(self) -> dict[str, Control]:
        own = {} if self._remote is None else {"remote_prefill": self._remote_prefill_control}
        return {**super().controls(), **self._prefill.controls(), "why": self._why, **own}

    async def _why(self, body: dict[str, Any]) -> dict[str, Any]:
        """Of both engines: a request can be in one, in the other, or go over."""
        parts = [await self._prefill.controls()["why"](body), await self._decode.why(body)]
        return {"requests": [each for part in parts for each in part["requests"]]}

    async def _remote_prefill_control(self, body: dict[str, Any]) -> dict[str, Any]:
        """Limits to change, by their names."""
        assert self._remote is not None
        self._remote.limits = self._remote.limits.changed(body)
        return msgspec.structs.asdict(self._remote.limits)

    async def kv_event_sources(self) -> list[KvEventSource]:
        return [ZmqSource(self._kv_events.endpoint, dp_rank=0)]

    async def generate(
        self, request: GenerateRequest, context: Context
    ) -> AsyncGenerator[GenerateChunk, None]:
        """Answer one prompt."""
        request_id = str(context.id())
        try:
            self.check_open(request)
            parsed = parse_request(request, self._limits, self._defaults)
        except (InvalidRequest, WorkerPaused, WorkerStarting) as error:
            raise self.exception(error) from error
        try:
            if is_probe(request):
                self._decode.probe(parsed.prompt_tokens)
                yield await self._prefill.probe(parsed)
                return
            with self.answering(request_id, context):
                async with aclosing(self._answer(request_id, parsed, context)) as answer:
                    async for chunk in answer:
                        yield chunk
        except RequestAborted:
            yield cancelled_chunk(parsed.prompt_tokens, 0)
        except WaveppError as error:
            raise self.exception(error) from error

    async def _answer(
        self, request_id: str, parsed: ParsedRequest, context: Context
    ) -> AsyncGenerator[GenerateChunk, None]:
        remote = self._remote
        # Jobs of a queue name no adapter.
        if remote is not None and not parsed.lora and remote.wanted(self._uncached(parsed)):
            begun = False
            try:
                async with aclosing(self._answer_remotely(remote, request_id, parsed, context)) as chunks:
                    async for chunk in chunks:
                        begun = True
                        yield chunk
                return
            except (QueueError, HandoffError, RequestFailed, JobTooLarge) as error:
                if begun:
                    raise
                remote.returned += 1
                logger.warning(
                    "request %s is prefilled here: %s", request_id, error, extra=of_request(request_id)
                )
        async with aclosing(self._answer_here(request_id, parsed, context)) as chunks:
            async for chunk in chunks:
                yield chunk

    def _uncached(self, parsed: ParsedRequest) -> int:
        return parsed.prompt_tokens - self._prefill.engine.reusable_tokens(
            parsed.tokens, parsed.salt, parsed.lora
        )

    async def _answer_remotely(
        self, remote: RemotePrefill, request_id: str, parsed: ParsedRequest, context: Context
    ) -> AsyncGenerator[GenerateChunk, None]:
        """The answer of a prompt that a prefill worker takes from the queue, and again another, if one dies."""
        job = await remote.send(await self._prefill.request(request_id, parsed))
        done = False
        try:
            while True:
                address = await job.address(remote.patience, context.is_stopped)
                own_id = request_id if job.attempt == 1 else f"{request_id}-{job.attempt}"
                headers = self.headers(context)
                stream = self._decode.stream(own_id, parsed, address, context.is_stopped, headers=headers)
                try:
                    async with aclosing(stream):
                        async for chunk in stream:
                            done = True
                            yield chunk
                    return
                except HandoffError as error:
                    if done or isinstance(error, HandoffMismatch):
                        # Prefill workers are mostly set alike, so another one's KV would hardly fit better.
                        raise
                    logger.warning(
                        "request %s waits for another prefill: %s",
                        request_id,
                        error,
                        extra=of_request(request_id),
                    )
        finally:
            job.leave(done=done)

    async def _answer_here(
        self, request_id: str, parsed: ParsedRequest, context: Context
    ) -> AsyncGenerator[GenerateChunk, None]:
        address = self._prefill.address(fresh_bootstrap_room())
        request = await self._prefill.request(request_id, parsed)
        headers = self.headers(context)
        prefill = asyncio.create_task(
            self._prefill.prefill(request, address.room, context.is_stopped, headers=headers)
        )
        prefill.add_done_callback(_seen)
        try:
            stream = self._decode.stream(request_id, parsed, address, context.is_stopped, headers=headers)
            async with aclosing(stream):
                async for chunk in stream:
                    yield chunk
        except WaveppError:
            # What the prefill says itself is nearer to the cause than what decode heard of it.
            if prefill.done():
                await prefill
            raise
        finally:
            # Not awaited: this also runs when the loop collects an abandoned stream.
            prefill.cancel()
            # That does nothing to a prefill that is done; if decode had not yet come for its KV, that would wait for
            # nobody. One that still runs is withdrawn so as well as aborted, of which the second does nothing.
            self._prefill.abandon(address.room)

    def let_go(self, request_id: str) -> None:
        self._decode.engine.abort(request_id)
        self._prefill.engine.abort(request_id)

    def registries(self) -> list[CollectorRegistry]:
        return [self._prefill.metrics.registry, self._decode.metrics.registry]

    def audit(self) -> dict[str, Any]:
        return {"prefill": self._prefill.engine.audit(), "decode": self._decode.engine.audit()}

    def describe(self) -> tuple[EngineDescription, ...]:
        # Its rooms are claimed from within.
        prefill = msgspec.structs.replace(self._prefill.describe(), bootstrap=None)
        return prefill, self._decode.engine.describe()

    def timings(self, last: int) -> list[dict[str, Any]]:
        return self._prefill.metrics.timings(last)

    def snapshot(self) -> ComponentSnapshot:
        return self._prefill.snapshot()


def _seen(prefill: asyncio.Task[PrefillResult]) -> None:
    """Its failure reaches the client through decode; here it only counts as looked at."""
    if not prefill.cancelled():
        prefill.exception()


def main() -> None:
    run_worker(AggWorker.from_args)


if __name__ == "__main__":
    main()

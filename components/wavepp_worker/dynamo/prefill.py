"""The prefill worker: ``python -m wavepp_worker.dynamo.prefill``."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator
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

from wavepp_worker.dynamo.args import PrefillArgs
from wavepp_worker.dynamo.bootstrap_info import (
    chosen_bootstrap_room,
    disaggregated_params,
    fresh_bootstrap_room,
)
from wavepp_worker.dynamo.control_bodies import Control, asked_ids
from wavepp_worker.dynamo.generate_chunks import cancelled_chunk, prefill_chunk
from wavepp_worker.dynamo.intake_metrics import IntakeMetrics
from wavepp_worker.dynamo.kv_event_thread import KvEventThread
from wavepp_worker.dynamo.prefill_handler import PrefillHandler
from wavepp_worker.dynamo.request_parser import parse_request
from wavepp_worker.dynamo.run_worker import run_worker, worker_config
from wavepp_worker.dynamo.runtime_args import JOBS_ALONE
from wavepp_worker.dynamo.sampling_options import default_sampling
from wavepp_worker.dynamo.worker import WaveppWorker
from wavepp_worker.errors import (
    InvalidRequest,
    RequestAborted,
    RequestFailed,
    WaveppError,
    WorkerPaused,
    WorkerStarting,
)
from wavepp_worker.intake.intake import Intake
from wavepp_worker.intake.names import QueueName
from wavepp_worker.model.lora import adapter_paths
from wavepp_worker.worker_description import EngineDescription


class PrefillWorker(WaveppWorker):
    """Prefills prompts over the ranks of one replica and hands their KV to decode workers."""

    mode = DisaggregationMode.PREFILL

    def __init__(self, args: PrefillArgs) -> None:
        """Check the configuration against the model; nothing is started yet.

        Raises:
            ConfigError: it cannot work; the message names the key.
        """
        # Frontends send nothing to who takes jobs alone, whatever models it has.
        alone = args.intake.intake == "nats-alone"
        super().__init__(args.runtime, () if alone else adapter_paths(args.engine.lora_modules))
        self._model = args.engine.model
        self._kv_events = KvEventThread(args.engine.block_size)
        self._handler = PrefillHandler(
            args.engine,
            bootstrap_port=args.runtime.bootstrap_port,
            on_index=self._kv_events.on_index,
            on_death=self.engine_died,
            on_pass=self.passes.on_pass,
            tracer=self.tracer,
        )
        self._defaults = default_sampling(args.engine.model)
        self._intake = self._make_intake(args)

    def _make_intake(self, args: PrefillArgs) -> Intake | None:
        if not args.intake.takes_jobs:
            return None
        name = QueueName(args.runtime.namespace, args.runtime.served_model_name)
        intake = Intake(self._handler, args.intake, name)
        self._handler.metrics.show(IntakeMetrics(intake.counts))
        return intake

    @classmethod
    async def from_args(cls, argv: list[str] | None = None) -> tuple[PrefillWorker, WorkerConfig]:
        args = PrefillArgs.parse_or_exit(argv)
        runtime = args.runtime
        if args.intake.intake == "nats-alone":
            # Frontends send nothing to a prefill worker without decode workers in its namespace.
            runtime = dataclasses.replace(runtime, namespace=f"{runtime.namespace}{JOBS_ALONE}")
        config = worker_config(runtime, str(args.engine.model), cls.mode)
        return cls(args), config

    def open(self) -> Registration:
        self._kv_events.start()
        self._handler.start()
        bootstrap = self._handler.bootstrap
        assert bootstrap is not None
        return Registration(
            model=str(self._model),
            served_model_name=self._runtime.served_model_name,
            llm=dataclasses.replace(
                self._handler.registration(),
                bootstrap_host=self._handler.bootstrap_host(),
                bootstrap_port=bootstrap.port,
            ),
        )

    def close(self) -> None:
        if self._intake is not None:
            self._intake.close()
        self._kv_events.close()
        self._handler.close()

    async def on_endpoint_ready(self, endpoint: Any) -> None:
        """Take jobs as well, if there is a queue: senders address this worker as routers do."""
        await super().on_endpoint_ready(endpoint)
        # Only then: who is told to stop while its adapters are awaited ends at once, and must have no jobs.
        if self._intake is not None and not self._stop_order.given:
            try:
                await asyncio.to_thread(self._intake.start, f"{endpoint.connection_id():x}")
            except WaveppError as error:
                self.start_error = error
                raise

    def told_to_stop(self) -> None:
        """As of every worker; what waits in the queue is left to others."""
        if self._intake is not None:
            self._intake.stop_taking()
        super().told_to_stop()

    async def kv_event_sources(self) -> list[KvEventSource]:
        return [ZmqSource(self._kv_events.endpoint, dp_rank=0)]

    async def is_quiescent(self) -> bool | None:
        # Rooms that nobody claimed do not count: their requests were refused, or their KV has been let go.
        quiet = await super().is_quiescent() and self._handler.engine.idle()
        return quiet and (self._intake is None or self._intake.idle())

    async def generate(
        self, request: GenerateRequest, context: Context
    ) -> AsyncGenerator[GenerateChunk, None]:
        """Prefill one prompt; its only chunk has the first token and where its KV is."""
        request_id = str(context.id())
        bootstrap_room: int | None = None
        try:
            bootstrap_room = chosen_bootstrap_room(request)
            self.check_open(request)
            parsed = parse_request(request, self._handler.limits, self._defaults, first_only=True)
            self._live.check_free(request_id)
            prefill = await self._handler.request(request_id, parsed)
        except (InvalidRequest, RequestFailed, WorkerPaused, WorkerStarting) as error:
            self._handler.refused(bootstrap_room, error)
            raise self.exception(error) from error
        try:
            if is_probe(request):
                yield await self._handler.probe(parsed)
                return
            with self.answering(request_id, context):
                if bootstrap_room is None:
                    bootstrap_room = fresh_bootstrap_room()
                params = disaggregated_params(self._handler.address(bootstrap_room))
                headers = self.headers(context)
                result = await self._handler.prefill(
                    prefill, bootstrap_room, context.is_stopped, headers=headers
                )
        except RequestAborted:
            yield cancelled_chunk(parsed.prompt_tokens, 0)
            return
        except WaveppError as error:
            raise self.exception(error) from error
        yield prefill_chunk(result, params, logprobs=parsed.sampling.logprobs is not None)

    def controls(self) -> dict[str, Control]:
        return {**super().controls(), **self._handler.controls(), "why": self._why}

    async def _why(self, body: dict[str, Any]) -> dict[str, Any]:
        """Of what this replica has, and of a job that is still in the queue, or of how many are."""
        told = await self._handler.controls()["why"](body)
        if self._intake is not None and asked_ids(body) == (None,):
            return {**told, "jobs_queued": self._intake.queue()}
        if self._intake is None or any(each["state"] != "unknown" for each in told["requests"]):
            return told
        for request_id in filter(None, asked_ids(body)):
            if (job := await asyncio.to_thread(self._intake.queued, request_id)) is not None:
                return {"requests": [msgspec.to_builtins(job)]}
        return told

    def take_jobs(self, *, taking: bool) -> None:
        if self._intake is not None:
            self._intake.pause(paused=not taking)

    def let_go(self, request_id: str) -> None:
        self._handler.engine.abort(request_id)

    def registries(self) -> list[CollectorRegistry]:
        return [self._handler.metrics.registry]

    def audit(self) -> dict[str, Any]:
        return self._handler.engine.audit()

    def describe(self) -> tuple[EngineDescription, ...]:
        return (self._handler.describe(),)

    def timings(self, last: int) -> list[dict[str, Any]]:
        return self._handler.metrics.timings(last)

    def snapshot(self) -> ComponentSnapshot:
        return self._handler.snapshot()


def main() -> None:
    run_worker(PrefillWorker.from_args)


if __name__ == "__main__":
    main()

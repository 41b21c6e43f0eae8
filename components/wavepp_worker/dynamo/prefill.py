"""The prefill worker: ``python -m wavepp_worker.dynamo.prefill``."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from dynamo._core import Context
from dynamo.common.backend.engine import EngineConfig as Registration
from dynamo.common.backend.engine import LlmRegistration
from dynamo.common.backend.health_check import is_probe
from dynamo.common.backend.publisher import ComponentSnapshot, KvEventSource, PushSource
from dynamo.common.backend.worker import WorkerConfig
from dynamo.common.constants import DisaggregationMode
from prometheus_client import CollectorRegistry

from wavepp_worker.dynamo.args import PrefillArgs
from wavepp_worker.dynamo.bootstrap_info import (
    chosen_bootstrap_room,
    disaggregated_params,
    fresh_bootstrap_room,
)
from wavepp_worker.dynamo.exceptions import to_dynamo_exception
from wavepp_worker.dynamo.generate_chunks import Chunk, cancelled_chunk, tokens_chunk, usage
from wavepp_worker.dynamo.kv_events import KvEvents
from wavepp_worker.dynamo.metrics import hit_rate
from wavepp_worker.dynamo.prefill_handler import PrefillHandler
from wavepp_worker.dynamo.request_parser import Limits, default_sampling, parse_request
from wavepp_worker.dynamo.worker import WaveppWorker, run_worker, worker_config
from wavepp_worker.errors import InvalidRequest, RequestAborted, WaveppError
from wavepp_worker.runtime.protocol.engine_config import EngineConfig
from wavepp_worker.runtime.protocol.requests import PrefillRequest, PrefillResult


class PrefillWorker(WaveppWorker):
    """Prefills prompts over the ranks of one replica and hands their KV to decode workers."""

    def __init__(self, args: PrefillArgs) -> None:
        """Check the configuration against the model; nothing is started yet.

        Raises:
            ConfigError: it cannot work; the message names the key.
        """
        super().__init__(args.runtime)
        self._config = args.engine
        self._events = KvEvents(args.engine.block_size)
        self._handler = PrefillHandler(
            args.engine,
            bootstrap_port=args.runtime.bootstrap_port,
            on_index=self._events.on_index,
            on_death=self.engine_died,
        )
        self._limits = prefill_limits(self._handler, args.engine)
        self._defaults = default_sampling(args.engine.model)

    @classmethod
    async def from_args(cls, argv: list[str] | None = None) -> tuple[PrefillWorker, WorkerConfig]:
        args = PrefillArgs.parse_or_exit(argv)
        config = worker_config(args.runtime, str(args.engine.model), DisaggregationMode.PREFILL)
        return cls(args), config

    def open(self) -> Registration:
        self._handler.start()
        address = self._handler.address(0)
        return Registration(
            model=str(self._config.model),
            served_model_name=self._runtime.served_model_name,
            llm=LlmRegistration(
                bootstrap_host=address.host,
                bootstrap_port=address.port,
                **registered_limits(self._handler, self._config),
            ),
        )

    def close(self) -> None:
        self._events.close()
        self._handler.close()

    async def kv_event_sources(self) -> list[KvEventSource]:
        return [PushSource(on_ready=self._events.start, dp_rank=0)]

    async def is_quiescent(self) -> bool | None:
        return self._handler.is_quiescent()

    async def generate(self, request: Any, context: Context) -> AsyncGenerator[Chunk, None]:
        """Prefill one prompt; its only chunk has the first token and where its KV is."""
        bootstrap_room = chosen_bootstrap_room(request)
        try:
            asked = parse_request(request, self._limits, self._defaults, first_only=True)
        except InvalidRequest as error:
            self._handler.metrics.failed(error)
            if bootstrap_room is not None:
                self._handler.fail(bootstrap_room, error)
            raise to_dynamo_exception(error) from error
        prefill = PrefillRequest(
            request_id=str(context.id()),
            tokens=asked.tokens,
            salt=asked.salt,
            sampling=asked.sampling,
            handoff=not is_probe(request),
            banned=asked.banned_first,
        )
        params: dict[str, Any] = {}
        try:
            if prefill.handoff:
                address = self._handler.address(
                    fresh_bootstrap_room() if bootstrap_room is None else bootstrap_room
                )
                params = disaggregated_params(address)
                result = await self._handler.prefill(prefill, address.room, context.is_stopped)
            else:
                result = await self._handler.probe(prefill, context.is_stopped)
        except RequestAborted:
            yield cancelled_chunk(asked.prompt_tokens, 0)
            return
        except WaveppError as error:
            raise to_dynamo_exception(error) from error
        yield prefill_chunk(result, params, logprobs=asked.sampling.logprobs is not None)

    async def abort(self, context: Context) -> None:
        self._handler.engine.abort(str(context.id()))

    def registries(self) -> list[CollectorRegistry]:
        return [self._handler.metrics.registry]

    def audit(self) -> dict[str, Any]:
        return self._handler.engine.audit()

    def timings(self, last: int) -> list[dict[str, Any]]:
        return self._handler.metrics.timings(last)

    def snapshot(self) -> ComponentSnapshot:
        return prefill_snapshot(self._handler)


def prefill_chunk(result: PrefillResult, params: dict[str, Any], *, logprobs: bool) -> Chunk:
    """The one chunk of a finished prefill.

    Its finish reason is always ``length``: at ``stop`` the frontend would end the answer without decode.
    """
    return {
        **tokens_chunk((result.first,), logprobs=logprobs),
        "finish_reason": "length",
        "completion_usage": usage(result.prompt_tokens, 1, result.reused_tokens),
        "disaggregated_params": params,
        "engine_data": {
            "kv_cache_hit": {"prompt_tokens": result.prompt_tokens, "reused_tokens": result.reused_tokens}
        },
    }


def prefill_limits(handler: PrefillHandler, config: EngineConfig) -> Limits:
    """What a prefill request is measured against."""
    engine = handler.engine
    return Limits(engine.max_model_len, engine.info.vocab_size, config.top_logprobs)


def registered_limits(handler: PrefillHandler, config: EngineConfig) -> dict[str, int]:
    """What Dynamo's router and frontend are told of a replica: its smallest rank bounds it."""
    return {
        "context_length": handler.engine.max_model_len,
        "kv_cache_block_size": config.block_size,
        "total_kv_blocks": handler.engine.total_blocks,
        "max_num_seqs": config.max_num_seqs,
        "max_num_batched_tokens": config.max_num_batched_tokens,
    }


def prefill_snapshot(handler: PrefillHandler) -> ComponentSnapshot:
    """A replica's load."""
    stats = handler.engine.stats()
    return ComponentSnapshot(
        kv_used_blocks=stats.used_blocks,
        kv_total_blocks=stats.total_blocks,
        gpu_cache_usage=stats.used_blocks / max(1, stats.total_blocks),
        dp_rank=0,
        kv_cache_hit_rate=hit_rate(stats),
    )


def main() -> None:
    run_worker(PrefillWorker.from_args)


if __name__ == "__main__":
    main()

"""The decode worker: ``python -m wavepp_worker.dynamo.decode``."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from dynamo._core import Context
from dynamo.common.backend.engine import EngineConfig as Registration
from dynamo.common.backend.engine import LlmRegistration
from dynamo.common.backend.health_check import is_probe
from dynamo.common.backend.publisher import ComponentSnapshot
from dynamo.common.backend.worker import WorkerConfig
from dynamo.common.constants import DisaggregationMode
from prometheus_client import CollectorRegistry

from wavepp_worker.decode.config import DecodeConfig
from wavepp_worker.dynamo.args import DecodeArgs
from wavepp_worker.dynamo.bootstrap_info import bootstrap_address
from wavepp_worker.dynamo.decode_handler import DecodeHandler
from wavepp_worker.dynamo.exceptions import to_dynamo_exception
from wavepp_worker.dynamo.generate_chunks import Chunk, usage
from wavepp_worker.dynamo.request_parser import Limits, default_sampling, parse_request
from wavepp_worker.dynamo.worker import WaveppWorker, run_worker, worker_config
from wavepp_worker.errors import EngineDead, WaveppError


class DecodeWorker(WaveppWorker):
    """Continues prompts whose KV prefill workers hand over."""

    def __init__(self, args: DecodeArgs) -> None:
        """Check the configuration against the model; nothing is started yet.

        Raises:
            ConfigError: it cannot work; the message names the key.
        """
        super().__init__(args.runtime)
        self._config = args.decode
        self._handler = DecodeHandler(args.decode, on_death=self.engine_died)
        self._defaults = default_sampling(args.decode.model)

    @classmethod
    async def from_args(cls, argv: list[str] | None = None) -> tuple[DecodeWorker, WorkerConfig]:
        args = DecodeArgs.parse_or_exit(argv)
        config = worker_config(args.runtime, str(args.decode.model), DisaggregationMode.DECODE)
        return cls(args), config

    def open(self) -> Registration:
        self._handler.start()
        engine = self._handler.engine
        return Registration(
            model=str(self._config.model),
            served_model_name=self._runtime.served_model_name,
            llm=LlmRegistration(
                context_length=engine.max_model_len,
                kv_cache_block_size=self._config.block_size,
                total_kv_blocks=engine.total_blocks,
                max_num_seqs=self._config.max_num_seqs,
                max_num_batched_tokens=self._config.max_num_seqs,
            ),
        )

    def close(self) -> None:
        self._handler.close()

    async def generate(self, request: Any, context: Context) -> AsyncGenerator[Chunk, None]:
        """Answer one prompt."""
        try:
            asked = parse_request(request, decode_limits(self._handler, self._config), self._defaults)
            if is_probe(request):
                yield probe_chunk(self._handler, asked.prompt_tokens)
                return
            stream = self._handler.stream(
                str(context.id()), asked, bootstrap_address(request), context.is_stopped
            )
            async with aclosing(stream):
                async for chunk in stream:
                    yield chunk
        except WaveppError as error:
            raise to_dynamo_exception(error) from error

    async def abort(self, context: Context) -> None:
        self._handler.engine.abort(str(context.id()))

    def registries(self) -> list[CollectorRegistry]:
        return [self._handler.metrics.registry]

    def audit(self) -> dict[str, Any]:
        return dict(self._handler.engine.audit())

    def timings(self, last: int) -> list[dict[str, Any]]:
        del last
        return []

    def snapshot(self) -> ComponentSnapshot:
        stats = self._handler.engine.stats()
        return ComponentSnapshot(
            kv_used_blocks=stats.used_blocks,
            kv_total_blocks=stats.total_blocks,
            gpu_cache_usage=stats.used_blocks / max(1, stats.total_blocks),
            dp_rank=0,
        )


def decode_limits(handler: DecodeHandler, config: DecodeConfig) -> Limits:
    """What a decode request is measured against."""
    engine = handler.engine
    return Limits(engine.max_model_len, engine.info.vocab_size, config.top_logprobs)


def probe_chunk(handler: DecodeHandler, prompt_tokens: int) -> Chunk:
    """The answer to a health probe, which has no prefill to continue from.

    Raises:
        EngineDead: the engine died.
    """
    if not handler.engine.alive:
        raise EngineDead("the decode engine died")
    return {
        "token_ids": [0],
        "index": 0,
        "finish_reason": "length",
        "completion_usage": usage(prompt_tokens, 1, 0),
    }


def main() -> None:
    run_worker(DecodeWorker.from_args)


if __name__ == "__main__":
    main()

"""The decode worker: ``python -m wavepp_worker.dynamo.decode``."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from dynamo._core import Context
from dynamo.common.backend.engine import EngineConfig as Registration
from dynamo.common.backend.engine import GenerateChunk, GenerateRequest
from dynamo.common.backend.health_check import is_probe
from dynamo.common.backend.publisher import ComponentSnapshot
from dynamo.common.backend.worker import WorkerConfig
from dynamo.common.constants import DisaggregationMode
from prometheus_client import CollectorRegistry

from wavepp_worker.dynamo.args import DecodeArgs
from wavepp_worker.dynamo.bootstrap_info import bootstrap_address
from wavepp_worker.dynamo.control_bodies import Control
from wavepp_worker.dynamo.decode_handler import DecodeHandler
from wavepp_worker.dynamo.request_parser import parse_request
from wavepp_worker.dynamo.run_worker import run_worker, worker_config
from wavepp_worker.dynamo.sampling_options import default_sampling
from wavepp_worker.dynamo.worker import WaveppWorker
from wavepp_worker.errors import WaveppError
from wavepp_worker.model.lora import adapter_paths
from wavepp_worker.worker_description import EngineDescription


class DecodeWorker(WaveppWorker):
    """Continues prompts whose KV prefill workers hand over."""

    mode = DisaggregationMode.DECODE

    def __init__(self, args: DecodeArgs) -> None:
        """Check the configuration against the model; nothing is started yet.

        Raises:
            ConfigError: it cannot work; the message names the key.
        """
        super().__init__(args.runtime, adapter_paths(args.decode.lora_modules))
        self._model = args.decode.model
        self._handler = DecodeHandler(
            args.decode, on_death=self.engine_died, on_step=self.passes.on_step, tracer=self.tracer
        )
        self._defaults = default_sampling(args.decode.model)

    @classmethod
    async def from_args(cls, argv: list[str] | None = None) -> tuple[DecodeWorker, WorkerConfig]:
        args = DecodeArgs.parse_or_exit(argv)
        config = worker_config(args.runtime, str(args.decode.model), cls.mode)
        return cls(args), config

    def open(self) -> Registration:
        self._handler.engine.start()
        return Registration(
            model=str(self._model),
            served_model_name=self._runtime.served_model_name,
            llm=self._handler.registration(),
        )

    def close(self) -> None:
        self._handler.engine.close()

    async def generate(
        self, request: GenerateRequest, context: Context
    ) -> AsyncGenerator[GenerateChunk, None]:
        """Answer one prompt."""
        request_id = str(context.id())
        try:
            self.check_open(request)
            parsed = parse_request(request, self._handler.limits, self._defaults)
            if is_probe(request):
                yield self._handler.probe(parsed.prompt_tokens)
                return
            address = bootstrap_address(request)
            with self.answering(request_id, context):
                headers = self.headers(context)
                stream = self._handler.stream(
                    request_id, parsed, address, context.is_stopped, headers=headers
                )
                async with aclosing(stream):
                    async for chunk in stream:
                        yield chunk
        except WaveppError as error:
            raise self.exception(error) from error

    def let_go(self, request_id: str) -> None:
        self._handler.engine.abort(request_id)

    def registries(self) -> list[CollectorRegistry]:
        return [self._handler.metrics.registry]

    def audit(self) -> dict[str, Any]:
        return self._handler.engine.audit()

    def describe(self) -> tuple[EngineDescription, ...]:
        return (self._handler.engine.describe(),)

    def controls(self) -> dict[str, Control]:
        return {**super().controls(), "why": self._handler.why}

    def timings(self, last: int) -> list[dict[str, Any]]:
        del last
        return []

    def snapshot(self) -> ComponentSnapshot:
        return self._handler.snapshot()


def main() -> None:
    run_worker(DecodeWorker.from_args)


if __name__ == "__main__":
    main()

"""A decode engine as an asyncio stream of chunks: what the decode worker and the agg worker share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from typing import Any

import msgspec
from dynamo.common.backend.engine import GenerateChunk, LlmRegistration
from dynamo.common.backend.publisher import ComponentSnapshot
from tokenizers import Tokenizer

from wavepp_worker import errors
from wavepp_worker.decode.config import DecodeConfig
from wavepp_worker.decode.engine import DecodeEngine
from wavepp_worker.decode.engine_io import DecodeOutput, DecodeRequest, DecodeStep
from wavepp_worker.dynamo.bootstrap_info import invalid_request_in
from wavepp_worker.dynamo.control_bodies import asked_ids
from wavepp_worker.dynamo.generate_chunks import cancelled_chunk, probe_chunk
from wavepp_worker.dynamo.load_snapshots import load_snapshot
from wavepp_worker.dynamo.metrics import DecodeMetrics
from wavepp_worker.dynamo.output_processor import OutputProcessor
from wavepp_worker.dynamo.request_parser import ParsedRequest, RequestLimits
from wavepp_worker.dynamo.spans import DECODE, PROMPT_TOKENS, received_span
from wavepp_worker.dynamo.stop_text import StopText, load_tokenizer
from wavepp_worker.dynamo.tracer import Tracer
from wavepp_worker.errors import EngineDead, HandoffError, RequestFailed, WaveppError, error_text
from wavepp_worker.handoff.offer import BootstrapAddress
from wavepp_worker.log_form import of_request

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.05
"""How often a stream that has no output to send looks whether its caller gave up."""


class DecodeHandler:
    """Generates answers from prompts whose KV a prefill worker hands over.

    Attributes:
        engine: to be started, closed and audited by the worker.
        metrics: of the engine and of how answers ended.
        limits: what a request is measured against.
    """

    def __init__(
        self,
        config: DecodeConfig,
        *,
        on_death: Callable[[str], None],
        on_step: Callable[[DecodeStep], None] | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        """Check the configuration; nothing is started yet.

        Raises:
            ConfigError: it cannot work; the message names the key.
        """
        self._config = config
        self._tracer = tracer
        self._tokenizer: Tokenizer | None = None
        self.engine = DecodeEngine(config, on_death=on_death, on_step=on_step)
        self.metrics = DecodeMetrics(self.engine.stats)
        self.limits = RequestLimits(
            self.engine.max_model_len,
            self.engine.info.vocab_size,
            config.top_logprobs,
            frozenset(self.engine.adapters),
        )

    def registration(self) -> LlmRegistration:
        """What Dynamo's router and frontend are told of this engine."""
        return LlmRegistration(
            context_length=self.engine.max_model_len,
            kv_cache_block_size=self._config.block_size,
            total_kv_blocks=self.engine.total_blocks,
            max_num_seqs=self._config.max_num_seqs,
            max_num_batched_tokens=self._config.max_num_seqs,
        )

    def snapshot(self) -> ComponentSnapshot:
        """The engine's load."""
        stats = self.engine.stats()
        return load_snapshot(stats.used_blocks, stats.total_blocks)

    def probe(self, prompt_tokens: int) -> GenerateChunk:
        """The answer to a health probe.

        Raises:
            EngineDead: the engine died.
        """
        if not self.engine.alive:
            raise EngineDead("the decode engine died")
        return probe_chunk(prompt_tokens)

    async def why(self, body: dict[str, Any]) -> dict[str, Any]:
        """A control: where the request is whose ``request_id`` a client got; without, those that wait longest."""
        found = map(self.engine.why, asked_ids(body))
        return {"requests": msgspec.to_builtins(next((each for each in found if each), []))}

    async def stream(
        self,
        request_id: str,
        parsed: ParsedRequest,
        address: BootstrapAddress | None,
        is_stopped: Callable[[], bool],
        *,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncGenerator[GenerateChunk, None]:
        """The answer, as chunks of which exactly the last has a finish reason.

        Args:
            request_id: unique among live requests.
            parsed: the request.
            address: of its prefill; None to prefill it here.
            is_stopped: whether the caller gave up; looked at while waiting, and before each output.
            headers: of the span above it, where that is traced.

        Raises:
            InvalidRequest: the decode engine or the prefill worker refuses the request.
            HandoffError: the KV did not arrive.
            RequestFailed: a token could not be sampled or detokenized.
            EngineDead: the engine died.
        """
        loop = asyncio.get_running_loop()
        outputs: asyncio.Queue[DecodeOutput] = asyncio.Queue()
        request = DecodeRequest(
            request_id=request_id,
            tokens=parsed.tokens,
            sampling=parsed.sampling,
            max_tokens=parsed.max_tokens,
            min_tokens=parsed.min_tokens,
            stop_token_ids=(*parsed.stop_hidden, *parsed.stop_visible),
            priority=parsed.priority,
            grammar=parsed.grammar,
            lora=parsed.lora,
            handoff=address,
        )
        outcome, submitted = "cancelled", False
        span = None if self._tracer is None else self._tracer.begin(DECODE, request_id, headers)
        try:
            processor = OutputProcessor(parsed, self._stop_text(parsed))
            self.engine.submit(request, lambda output: loop.call_soon_threadsafe(outputs.put_nowait, output))
            submitted = True
            while True:
                output = await self._next(outputs, request_id, is_stopped)
                if output.arrived is not None:
                    self.metrics.arrived(output.arrived)
                    if span is not None:
                        span.add(received_span(output.arrived))
                if output.finish_reason == "error":
                    raise _raisable(output)
                if output.finish_reason == "cancelled":
                    yield cancelled_chunk(parsed.prompt_tokens, processor.completion_tokens)
                    return
                chunk = processor.chunk(output)
                if chunk is not None:
                    finish = chunk.get("finish_reason")
                    outcome = finish or outcome
                    yield chunk
                    if finish:
                        return
        except WaveppError as error:
            outcome = type(error).__name__
            raise
        except Exception as error:
            logger.exception("request %s failed", request_id, extra=of_request(request_id))
            outcome = RequestFailed.__name__
            text = f"the answer of request {request_id} could not be detokenized"
            raise RequestFailed(f"{text}: {error_text(error)}") from error
        finally:
            # If it was refused, the id may be another request's.
            if submitted:
                self.engine.abort(request_id)
            self.metrics.ended(outcome)
            if span is not None:
                failed = outcome if outcome in vars(errors) else None
                span.end({PROMPT_TOKENS: parsed.prompt_tokens, "wavepp.outcome": outcome}, failed)

    async def _next(
        self, outputs: asyncio.Queue[DecodeOutput], request_id: str, is_stopped: Callable[[], bool]
    ) -> DecodeOutput:
        while True:
            # Before every one: where tokens come faster than this waits for them, no wait ever ends without one.
            if is_stopped():
                self.engine.abort(request_id)
            with suppress(asyncio.TimeoutError):
                return await asyncio.wait_for(outputs.get(), POLL_SECONDS)

    def _stop_text(self, parsed: ParsedRequest) -> StopText | None:
        if not parsed.stop_strings:
            return None
        if self._tokenizer is None:
            self._tokenizer = load_tokenizer(self._config.model)
        return StopText(
            self._tokenizer,
            parsed.stop_strings,
            prompt=parsed.tokens,
            keep_stop_string=parsed.keep_stop_string,
            skip_special=parsed.skip_special,
            min_tokens=parsed.min_tokens,
        )


def _raisable(output: DecodeOutput) -> WaveppError:
    reason = output.error or "the decode engine gave no reason"
    kind = getattr(errors, output.error_kind or "", HandoffError)
    return invalid_request_in(reason) or kind(reason)

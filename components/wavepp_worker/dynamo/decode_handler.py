"""A decode engine as an asyncio stream of chunks: what the decode worker and the agg worker share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

from tokenizers import Tokenizer

from wavepp_worker import errors
from wavepp_worker.decode.config import DecodeConfig
from wavepp_worker.decode.engine import DecodeEngine
from wavepp_worker.decode.engine_io import DecodeOutput, DecodeRequest
from wavepp_worker.dynamo.bootstrap_info import INVALID_REQUEST
from wavepp_worker.dynamo.generate_chunks import Chunk, cancelled_chunk, tokens_chunk, usage
from wavepp_worker.dynamo.metrics import DecodeMetrics
from wavepp_worker.dynamo.request_parser import ParsedRequest
from wavepp_worker.dynamo.stop_text import StopText, load_tokenizer
from wavepp_worker.errors import HandoffError, InvalidRequest, WaveppError
from wavepp_worker.handoff.offer import BootstrapAddress
from wavepp_worker.model.sampling import SampledToken

POLL_SECONDS = 0.05
"""How often a waiting stream looks whether its caller gave up."""


class DecodeHandler:
    """Generates answers from prompts whose KV a prefill worker hands over."""

    def __init__(self, config: DecodeConfig, *, on_death: Callable[[str], None]) -> None:
        """Check the configuration; nothing is started yet.

        Raises:
            ConfigError: it cannot work; the message names the key.
        """
        self._config = config
        self._tokenizer: Tokenizer | None = None
        self.engine = DecodeEngine(config, on_death=on_death)
        self.metrics = DecodeMetrics(self.engine.stats)

    def start(self) -> None:
        """Load the model; blocks until requests can be taken.

        Raises:
            ConfigError: the model or the pool cannot work.
            EngineDead: the engine failed to start.
        """
        self.engine.start()

    def close(self) -> None:
        """Stop; idempotent, also if never started."""
        self.engine.close()

    async def stream(
        self, request_id: str, asked: ParsedRequest, address: BootstrapAddress, is_stopped: Callable[[], bool]
    ) -> AsyncGenerator[Chunk, None]:
        """The answer, as chunks of which exactly the last has a finish reason.

        Args:
            request_id: unique among live requests.
            asked: the request.
            address: of its prefill.
            is_stopped: whether the caller gave up; looked at while waiting.

        Raises:
            InvalidRequest: the decode engine or the prefill worker refuses the request.
            HandoffError: the KV did not arrive.
            EngineDead: the engine died.
        """
        loop = asyncio.get_running_loop()
        outputs: asyncio.Queue[DecodeOutput] = asyncio.Queue()
        answer = _Answer(asked, self._stop_text(asked))
        request = DecodeRequest(
            request_id=request_id,
            tokens=asked.tokens,
            sampling=asked.sampling,
            max_tokens=asked.max_tokens,
            min_tokens=asked.min_tokens,
            stop_token_ids=(*asked.stop_hidden, *asked.stop_visible),
            handoff=address,
        )
        outcome = "cancelled"
        try:
            self.engine.submit(request, lambda output: _put(loop, outputs, output))
            while True:
                output = await self._next(outputs, request_id, is_stopped)
                if output.finish_reason == "error":
                    raise self._error(output)
                if output.finish_reason == "cancelled":
                    yield cancelled_chunk(asked.prompt_tokens, answer.completion_tokens)
                    return
                chunk = answer.add(output)
                if chunk is not None:
                    finish = chunk.get("finish_reason")
                    outcome = finish or outcome
                    yield chunk
                    if finish:
                        return
        except WaveppError as error:
            outcome = type(error).__name__
            raise
        finally:
            self.engine.abort(request_id)
            self.metrics.ended(outcome)

    async def _next(
        self, outputs: asyncio.Queue[DecodeOutput], request_id: str, is_stopped: Callable[[], bool]
    ) -> DecodeOutput:
        aborted = False
        while True:
            try:
                return await asyncio.wait_for(outputs.get(), POLL_SECONDS)
            except asyncio.TimeoutError:
                if is_stopped() and not aborted:
                    aborted = True
                    self.engine.abort(request_id)

    def _stop_text(self, asked: ParsedRequest) -> StopText | None:
        if not asked.stop_strings:
            return None
        if self._tokenizer is None:
            self._tokenizer = load_tokenizer(self._config.model)
        return StopText(
            self._tokenizer,
            asked.stop_strings,
            prompt=asked.tokens,
            keep_stop_string=asked.keep_stop_string,
            skip_special=asked.skip_special,
            min_tokens=asked.min_tokens,
        )

    def _error(self, output: DecodeOutput) -> WaveppError:
        text = output.error or "the decode engine gave no reason"
        _, invalid, reason = text.partition(INVALID_REQUEST)
        if invalid:
            return InvalidRequest(reason)
        kind = getattr(errors, output.error_kind or "", HandoffError)
        return kind(text)


def _put(loop: asyncio.AbstractEventLoop, outputs: asyncio.Queue[DecodeOutput], output: DecodeOutput) -> None:
    loop.call_soon_threadsafe(outputs.put_nowait, output)


class _Answer:
    """One answer on its way out: engine outputs in, chunks out."""

    def __init__(self, asked: ParsedRequest, text: StopText | None) -> None:
        self._asked = asked
        self._text = text
        self._hidden = frozenset(asked.stop_hidden)
        self._cached: int | None = None
        self._first = True
        self.completion_tokens = 0

    def add(self, output: DecodeOutput) -> Chunk | None:
        """The chunk to send for one output; None if it has nothing to show yet."""
        if output.tokens:
            self._cached = output.reused_tokens
        finish = output.finish_reason
        if self._text is None:
            chunk = self._count(output.tokens)
        else:
            chunk, stopped = self._spell(self._text, output.tokens, finish is not None)
            finish = "stop" if stopped else finish
        if finish is not None:
            chunk["finish_reason"] = finish
        elif not chunk["token_ids"]:
            return None
        # The frontend may end the answer at any chunk (it knows stop tokens too), and takes the count of
        # cached tokens from what it has seen by then.
        if finish is not None or self._first:
            chunk["completion_usage"] = usage(self._asked.prompt_tokens, self.completion_tokens, self._cached)
        self._first = False
        return chunk

    def _count(self, tokens: tuple[SampledToken, ...]) -> Chunk:
        self.completion_tokens += len(tokens)
        return tokens_chunk(tokens, logprobs=self._asked.sampling.logprobs is not None)

    def _spell(self, text: StopText, tokens: tuple[SampledToken, ...], last: bool) -> tuple[Chunk, bool]:
        shown = ""
        stopped = False
        used = 0
        for position, token in enumerate(tokens):
            ends = last and position == len(tokens) - 1 and token.token in self._hidden
            piece = text.add(token.token, shown=not ends)
            shown += piece.text
            used += 1
            if piece.stopped:
                stopped = True
                break
        if last and not stopped:
            shown += text.finish()
        chunk = self._count(tokens[:used])
        chunk["text"] = shown
        chunk["tokens"] = [text.token_text(token.token) for token in tokens[:used]]
        for alternatives in chunk.get("top_logprobs", ()):
            for alternative in alternatives:
                alternative["token"] = text.token_text(alternative["token_id"])
        return chunk, stopped

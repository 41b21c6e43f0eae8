"""One answer on its way out: a decode engine's outputs in, chunks for Dynamo's frontend out. Pure."""

from __future__ import annotations

from dynamo.common.backend.engine import GenerateChunk

from wavepp_worker.decode.engine_io import DecodeOutput
from wavepp_worker.dynamo.generate_chunks import TextChunk, completion_usage, tokens_chunk
from wavepp_worker.dynamo.request_parser import ParsedRequest
from wavepp_worker.dynamo.stop_text import StopText
from wavepp_worker.model.sampled_token import SampledToken


class OutputProcessor:
    """Makes the chunks of one answer.

    Attributes:
        completion_tokens: tokens in the chunks so far.
    """

    def __init__(self, parsed: ParsedRequest, text: StopText | None) -> None:
        """Start an answer.

        Args:
            parsed: the request.
            text: makes the answer's text; None where the frontend does.
        """
        self._prompt_tokens = parsed.prompt_tokens
        self._logprobs = parsed.sampling.logprobs is not None
        self._hidden = frozenset(parsed.stop_hidden)
        self._text = text
        self._cached: int | None = None
        self._first = True
        self.completion_tokens = 0

    def chunk(self, output: DecodeOutput) -> GenerateChunk | None:
        """The chunk to send for one output; None if it has nothing to show yet."""
        if output.tokens:
            self._cached = output.reused_tokens
        finish: str | None = output.finish_reason
        if self._text is None:
            chunk = self._counted(output.tokens)
        else:
            chunk, stopped = self._spelled(self._text, output.tokens, finish is not None)
            finish = "stop" if stopped else finish
        if finish is not None:
            chunk["finish_reason"] = finish
        elif not chunk["token_ids"]:
            return None
        # The frontend may end the answer at any chunk (it knows stop tokens too), and takes the count of
        # cached tokens from what it has seen by then.
        if finish is not None or self._first:
            chunk["completion_usage"] = completion_usage(
                self._prompt_tokens, self.completion_tokens, self._cached
            )
        self._first = False
        return chunk

    def _counted(self, tokens: tuple[SampledToken, ...]) -> GenerateChunk:
        self.completion_tokens += len(tokens)
        return tokens_chunk(tokens, logprobs=self._logprobs)

    def _spelled(
        self, text: StopText, tokens: tuple[SampledToken, ...], last: bool
    ) -> tuple[TextChunk, bool]:
        """A chunk with its text, up to the first stop string, and whether there was one."""
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
            ending = text.finish()
            shown += ending.text
            stopped = ending.stopped
        spelled = [text.token_text(token.token) for token in tokens[:used]]
        chunk: TextChunk = {**self._counted(tokens[:used]), "text": shown, "tokens": spelled}
        for alternatives in chunk.get("top_logprobs", ()):
            for alternative in alternatives:
                alternative["token"] = text.token_text(alternative["token_id"])
        return chunk, stopped

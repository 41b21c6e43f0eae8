"""The chunks a worker streams back to Dynamo's frontend. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from dynamo.common.backend.engine import GenerateChunk

from wavepp_worker.model.sampled_token import SampledToken
from wavepp_worker.runtime.protocol.requests import PrefillResult


class TextChunk(GenerateChunk, total=False):
    """A chunk whose text the worker made itself; the frontend passes it through.

    Attributes:
        text: what is new of the answer's text.
        tokens: each token's own text, for logprobs.
    """

    text: str
    tokens: list[str]


def completion_usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int | None) -> dict[str, Any]:
    """OpenAI's usage object; ``cached_tokens`` None where the reuse is not known."""
    usage: dict[str, Any] = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }
    if cached_tokens is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": cached_tokens}
    return usage


def tokens_chunk(tokens: Sequence[SampledToken], *, logprobs: bool) -> GenerateChunk:
    """A chunk that continues an answer.

    Args:
        tokens: what was generated since the last chunk.
        logprobs: whether the request asked for them; each list is then aligned with the tokens.
    """
    chunk: GenerateChunk = {"token_ids": [token.token for token in tokens], "index": 0}
    if logprobs and tokens:
        # A request that asked for them has one with every token.
        chunk["log_probs"] = cast(list[float], [token.logprob for token in tokens])
        chunk["top_logprobs"] = [
            [
                {"rank": rank, "token_id": token_id, "token": None, "logprob": logprob}
                for rank, (token_id, logprob) in enumerate(token.top, start=1)
            ]
            for token in tokens
        ]
    return chunk


def prefill_chunk(
    result: PrefillResult, disaggregated_params: dict[str, Any], *, logprobs: bool
) -> GenerateChunk:
    """The one chunk of a finished prefill.

    Its finish reason is always ``length``: at ``stop`` the frontend would end the answer without decode.
    """
    chunk = tokens_chunk((result.first,), logprobs=logprobs)
    chunk["finish_reason"] = "length"
    chunk["completion_usage"] = completion_usage(result.prompt_tokens, 1, result.reused_tokens)
    chunk["disaggregated_params"] = disaggregated_params
    chunk["engine_data"] = {
        "kv_cache_hit": {"prompt_tokens": result.prompt_tokens, "reused_tokens": result.reused_tokens}
    }
    return chunk


def probe_chunk(prompt_tokens: int) -> GenerateChunk:
    """The answer to a health probe, which is about whether there is one."""
    return {
        "token_ids": [0],
        "index": 0,
        "finish_reason": "length",
        "completion_usage": completion_usage(prompt_tokens, 1, 0),
    }


def cancelled_chunk(prompt_tokens: int, completion_tokens: int) -> GenerateChunk:
    """The terminal chunk of a request its caller gave up on."""
    return {
        "token_ids": [],
        "index": 0,
        "finish_reason": "cancelled",
        "completion_usage": completion_usage(prompt_tokens, completion_tokens, None),
    }

"""The chunks a worker streams back to Dynamo's frontend. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wavepp_worker.model.sampling import SampledToken

Chunk = dict[str, Any]


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int | None) -> dict[str, Any]:
    """OpenAI's usage object; ``cached_tokens`` None where the reuse is not known."""
    counted: dict[str, Any] = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }
    if cached_tokens is not None:
        counted["prompt_tokens_details"] = {"cached_tokens": cached_tokens}
    return counted


def tokens_chunk(tokens: Sequence[SampledToken], *, logprobs: bool) -> Chunk:
    """A chunk that continues an answer.

    Args:
        tokens: what was generated since the last chunk.
        logprobs: whether the request asked for them; each list is then aligned with the tokens.
    """
    chunk: Chunk = {"token_ids": [token.token for token in tokens], "index": 0}
    if logprobs and tokens:
        chunk["log_probs"] = [token.logprob for token in tokens]
        chunk["top_logprobs"] = [
            [
                {"rank": rank, "token_id": token_id, "token": None, "logprob": logprob}
                for rank, (token_id, logprob) in enumerate(token.top, start=1)
            ]
            for token in tokens
        ]
    return chunk


def cancelled_chunk(prompt_tokens: int, completion_tokens: int) -> Chunk:
    """The terminal chunk of a request its caller gave up on."""
    return {
        "token_ids": [],
        "index": 0,
        "finish_reason": "cancelled",
        "completion_usage": usage(prompt_tokens, completion_tokens, None),
    }

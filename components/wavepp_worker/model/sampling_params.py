"""How the next token is to be chosen. Apart from the choosing, as configurations are checked without tensors."""

from __future__ import annotations

import math
import secrets

import msgspec

from wavepp_worker.errors import InvalidRequest

MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY = 1e-3, 1e3
MAX_TOP_K = 2**31 - 1
MAX_BIAS = 100.0
MOST_BIASES = 1024


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How to choose the next token. The defaults are greedy.

    Attributes:
        temperature: 0 is greedy.
        top_p: nucleus mass in (0, 1].
        top_k: 0 keeps all.
        min_p: 0 keeps all.
        seed: None draws a fresh one at submission; the draw at a step depends on (seed, step) alone.
        presence_penalty: as OpenAI's, over generated tokens.
        frequency_penalty: as OpenAI's, over generated tokens.
        repetition_penalty: as in transformers, over prompt and generated tokens; 1 is none.
        logit_bias: ``(token id, bias)``, added to these tokens' logits before all else; ids outside the vocabulary do
            not count.
        logprobs: None for none, else how many alternatives to report beside the chosen token.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None


def check_sampling(params: SamplingParams, max_logprobs: int) -> None:
    """Check every value's range.

    Args:
        params: what a request asks for.
        max_logprobs: most alternatives that may be asked for.

    Raises:
        InvalidRequest: the first value that is out of range, and its range.
    """
    penalty, unit = "a number from -2 to 2", "a number from 0 to 1"
    _require(
        "temperature", params.temperature, 0 <= params.temperature < math.inf, "a finite number, at least 0"
    )
    _require("top_p", params.top_p, 0 < params.top_p <= 1, "above 0 and at most 1")
    _require("top_k", params.top_k, 0 <= params.top_k <= MAX_TOP_K, f"0 (keeps all) to {MAX_TOP_K}")
    _require("min_p", params.min_p, 0 <= params.min_p <= 1, unit)
    _require("presence_penalty", params.presence_penalty, -2 <= params.presence_penalty <= 2, penalty)
    _require("frequency_penalty", params.frequency_penalty, -2 <= params.frequency_penalty <= 2, penalty)
    repetition = params.repetition_penalty
    least, most = MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY
    _require("repetition_penalty", repetition, least <= repetition <= most, f"from {least:g} to {most:g}")
    if params.seed is not None:
        _require("seed", params.seed, -(2**63) <= params.seed < 2**64, "a 64-bit integer")
    count = len(params.logit_bias)
    if count > MOST_BIASES:
        raise InvalidRequest(f"logit_bias has {count} tokens; give at most {MOST_BIASES}")
    for token, bias in params.logit_bias:
        fine = -MAX_BIAS <= bias <= MAX_BIAS
        _require(f"logit_bias of token {token}", bias, fine, f"from {-MAX_BIAS:g} to {MAX_BIAS:g}")
    if params.logprobs is not None:
        allowed = f"from 0 to {max_logprobs}"
        _require("logprobs", params.logprobs, 0 <= params.logprobs <= max_logprobs, allowed)


def _require(name: str, value: float, holds: bool, allowed: str) -> None:
    if not holds:
        raise InvalidRequest(f"{name} is {value}, but must be {allowed}")


def resolve_seed(params: SamplingParams) -> SamplingParams:
    """``params`` with a fresh random seed if it has none."""
    return params if params.seed is not None else msgspec.structs.replace(params, seed=secrets.randbits(63))

"""Numbers of an OpenAI request that a worker would refuse, told before it is routed. Pure.

What a worker refuses is an internal error to the frontend on some paths, so its rules are applied here, too:
the same functions, as far as the types are right. Wrong types the frontend refuses itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from wavepp_worker.dynamo.sampling_options import SAMPLING_KEYS, logit_biases, sampling_params
from wavepp_worker.errors import InvalidRequest
from wavepp_worker.model.sampling_params import SamplingParams, check_sampling
from wavepp_worker.request_checks import check_biased

MOST_LOGPROBS = 20
MOST_STOPS = 4
"""As OpenAI's, of stop strings and of stop tokens. The frontend takes more in one place and fails in another."""

_WHOLE = frozenset({"top_k", "seed"})


def sampling_out_of_range(body: Mapping[str, Any]) -> str | None:
    """The first sampling parameter that no worker takes, and its range."""
    options = {key: body[key] for key in SAMPLING_KEYS if _is_number(body.get(key), whole=key in _WHOLE)}
    try:
        check_sampling(sampling_params(options, None, SamplingParams()), MOST_LOGPROBS)
    except InvalidRequest as error:
        return str(error)
    return None


def bias_out_of_range(vocab_size: int | None) -> Callable[[Mapping[str, Any]], str | None]:
    """Finds what no worker takes as ``logit_bias``; a vocabulary that is unknown has every token."""

    def check(body: Mapping[str, Any]) -> str | None:
        if not body.get("logit_bias"):
            return None
        try:
            biases = logit_biases(body["logit_bias"])
            check_sampling(SamplingParams(logit_bias=biases), MOST_LOGPROBS)
            check_biased(biases, vocab_size)
        except InvalidRequest as error:
            return str(error)
        return None

    return check


def stop_out_of_range(body: Mapping[str, Any]) -> str | None:
    """Too many stop strings, or stop tokens."""
    for key, name in (("stop", "stop strings"), ("stop_token_ids", "stop_token_ids")):
        stops = body.get(key)
        if isinstance(stops, list) and len(stops) > MOST_STOPS:
            return f"{len(stops)} {name}; give at most {MOST_STOPS}"
    return None


def stop_without_effect(body: Mapping[str, Any]) -> str | None:
    """What should end an answer that is to have no end of its own: the frontend drops it then."""
    if body.get("ignore_eos") is not True:
        return None
    key = next((each for each in ("stop", "stop_token_ids") if body.get(each)), None)
    return (
        None if key is None else f"{key} beside ignore_eos is not supported; leave out the one or the other"
    )


def too_few_tokens(body: Mapping[str, Any]) -> str | None:
    """An answer that must be longer than it may be."""
    least: Any = body.get("min_tokens")
    if not _is_number(least, whole=True):
        return None
    limits = ("max_completion_tokens", "max_tokens", "max_output_tokens")
    key = next((limit for limit in limits if _is_number(body.get(limit), whole=True)), None)
    if key is None or least <= body[key]:
        return None
    return f"min_tokens={least} is more than {key}={body[key]}; lower the one or raise the other"


def _is_number(value: Any, *, whole: bool) -> bool:
    return isinstance(value, int if whole else int | float) and not isinstance(value, bool)

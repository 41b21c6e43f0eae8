"""From Dynamo's ``sampling_options`` to how tokens are chosen here, and the model's own defaults."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from wavepp_worker.errors import InvalidRequest
from wavepp_worker.model.files.generation_config import read_generation_config
from wavepp_worker.model.sampling_params import SamplingParams

SAMPLING_KEYS = frozenset(SamplingParams.__struct_fields__) - {"logprobs"}
"""The keys of ``sampling_options`` that ``sampling_params`` reads: it names them as they are named there."""
_TOP_K_OF_GENERATION_CONFIG = 50
"""What transformers takes for ``top_k`` where a sampling model's ``generation_config.json`` has none."""


def default_sampling(model: Path) -> SamplingParams:
    """What a request that says nothing gets: the model's ``generation_config.json``, else greedy.

    This is transformers' own rule, so that the same model answers alike behind both.

    Raises:
        ConfigError: the file cannot be used.
    """
    said = read_generation_config(model)
    penalty = float(said.get("repetition_penalty") or 1.0)
    if not said.get("do_sample"):
        return SamplingParams(repetition_penalty=penalty)
    return SamplingParams(
        temperature=float(said.get("temperature", 1.0)),
        top_p=float(said.get("top_p", 1.0)),
        top_k=int(said.get("top_k", _TOP_K_OF_GENERATION_CONFIG)),
        min_p=float(said.get("min_p", 0.0)),
        repetition_penalty=penalty,
    )


def sampling_params(
    options: Mapping[str, Any], logprobs: int | None, defaults: SamplingParams
) -> SamplingParams:
    """How to choose tokens; types are checked, ranges are not.

    Args:
        options: the request's ``sampling_options``, without keys that say nothing.
        logprobs: how many alternatives to report; None for no logprobs.
        defaults: for what the request leaves open.

    Raises:
        InvalidRequest: what should be a number is none.
    """
    temperature = options.get("temperature")
    if temperature is None:
        temperature = defaults.temperature
        # Who shapes or seeds the draw wants one, though the model's default is greedy.
        if temperature == 0.0 and options.keys() & {"top_p", "top_k", "min_p", "seed"}:
            temperature = 1.0
    top_p = _number(options, "top_p", defaults.top_p)
    top_k = _whole(options, "top_k", defaults.top_k)
    if top_p == 0.0:
        # An empty nucleus still holds its best token.
        top_p, top_k = 1.0, 1
    return msgspec.structs.replace(
        defaults,
        temperature=_number({"temperature": temperature}, "temperature", 0.0),
        top_p=top_p,
        # Clients write "keep every token" as 0 or -1.
        top_k=0 if top_k == -1 else top_k,
        min_p=_number(options, "min_p", defaults.min_p),
        seed=_whole(options, "seed", None),
        presence_penalty=_number(options, "presence_penalty", 0.0),
        frequency_penalty=_number(options, "frequency_penalty", 0.0),
        repetition_penalty=_number(options, "repetition_penalty", defaults.repetition_penalty),
        logit_bias=logit_biases(options.get("logit_bias", {})),
        logprobs=logprobs,
    )


def logit_biases(value: Any) -> tuple[tuple[int, float], ...]:
    """``logit_bias`` as OpenAI's: an object with a number for each token id; ranges are not checked.

    Raises:
        InvalidRequest: it is none.
    """
    if not isinstance(value, Mapping):
        raise InvalidRequest(f'logit_bias={value!r} should be an object, such as {{"50256": -100}}')
    biases = []
    for token, bias in value.items():
        text = str(token)
        if not text.isdecimal() or not text.isascii() or len(text) > 18:
            raise InvalidRequest(f"logit_bias has a token {text[:40]!r}; its keys should be token ids")
        biases.append((int(text), _number({"bias": bias}, "bias", 0.0)))
    return tuple(biases)


def _number(options: Mapping[str, Any], key: str, default: float) -> float:
    value = options.get(key, default)
    try:
        if not isinstance(value, bool) and isinstance(value, int | float):
            return float(value)
    except OverflowError as error:
        raise InvalidRequest(f"{key} is too large a number; give a smaller one") from error
    raise InvalidRequest(f"{key}={value!r} should be a number")


_Whole = TypeVar("_Whole", int, int | None)


def _whole(options: Mapping[str, Any], key: str, default: _Whole) -> int | _Whole:
    value = options.get(key, default)
    if value is not default and (isinstance(value, bool) or not isinstance(value, int)):
        raise InvalidRequest(f"{key}={value!r} should be a whole number")
    return value

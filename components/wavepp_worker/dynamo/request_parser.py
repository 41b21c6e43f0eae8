"""From what Dynamo's frontend sends to what our engines take; refuses what we cannot honour. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from wavepp_worker.errors import InvalidRequest
from wavepp_worker.model.sampling import SamplingParams, validate

_SAMPLING = frozenset(
    {
        "n",
        "best_of",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "seed",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "length_penalty",
        "include_stop_str_in_output",
    }
)
_STOP = frozenset(
    {
        "max_tokens",
        "min_tokens",
        "stop",
        "stop_token_ids",
        "stop_token_ids_visible",
        "stop_token_ids_hidden",
        "ignore_eos",
    }
)
_OUTPUT = frozenset({"logprobs", "skip_special_tokens", "formatted_prompt"})
_GROUPS = {"sampling_options": _SAMPLING, "stop_conditions": _STOP, "output_options": _OUTPUT}
_REFUSED = {
    "multi_modal_data": "images, audio and video",
    "mm_processor_kwargs": "images, audio and video",
    "encoder_result": "images, audio and video",
    "prompt_embeds": "prompt embeddings",
}


@dataclass(frozen=True)
class Limits:
    """What a request is measured against.

    Attributes:
        max_model_len: most tokens of prompt and answer together.
        vocab_size: token ids are below it.
        top_logprobs: most alternatives a request may ask for.
    """

    max_model_len: int
    vocab_size: int
    top_logprobs: int


@dataclass(frozen=True)
class ParsedRequest:
    """A request as the frontend sent it, checked and in our words.

    Attributes:
        tokens: the prompt, little-endian uint32.
        salt: the cache isolation key.
        sampling: how tokens are chosen.
        max_tokens: most tokens to generate: at least 1, at most what the context leaves.
        min_tokens: tokens before which nothing ends the answer.
        stop_hidden: token ids that end the answer and whose text is not shown.
        stop_visible: token ids that end the answer and whose text is shown.
        stop_strings: texts that end the answer.
        keep_stop_string: whether the stop text itself is shown.
        skip_special: whether special tokens are left out of the text.
    """

    tokens: bytes
    salt: str
    sampling: SamplingParams
    max_tokens: int
    min_tokens: int
    stop_hidden: tuple[int, ...]
    stop_visible: tuple[int, ...]
    stop_strings: tuple[str, ...]
    keep_stop_string: bool
    skip_special: bool

    @property
    def banned_first(self) -> tuple[int, ...]:
        """Tokens that the first one must not be: what would end an answer that must not end yet."""
        return (*self.stop_hidden, *self.stop_visible) if self.min_tokens else ()

    @property
    def prompt_tokens(self) -> int:
        return len(self.tokens) // 4


def default_sampling(model: Path) -> SamplingParams:
    """What a request that says nothing gets: the model's ``generation_config.json``, else greedy.

    This is transformers' own rule, so that the same model answers alike behind both.
    """
    try:
        config = json.loads((model / "generation_config.json").read_text())
    except FileNotFoundError:
        return SamplingParams()
    penalty = float(config.get("repetition_penalty") or 1.0)
    if not config.get("do_sample"):
        return SamplingParams(repetition_penalty=penalty)
    return SamplingParams(
        temperature=float(_either(config.get("temperature"), 1.0)),
        top_p=float(_either(config.get("top_p"), 1.0)),
        top_k=int(_either(config.get("top_k"), 50)),
        min_p=float(_either(config.get("min_p"), 0.0)),
        repetition_penalty=penalty,
    )


def parse_request(
    request: Mapping[str, Any], limits: Limits, defaults: SamplingParams, *, first_only: bool = False
) -> ParsedRequest:
    """Translate one request.

    Args:
        first_only: a prefill, for which the frontend lowers ``max_tokens`` to 1 and leaves ``min_tokens``.

    Raises:
        InvalidRequest: the request is malformed, out of range, or asks for something this worker cannot do.
    """
    _refuse_unsupported(request)
    tokens = _tokens(request.get("token_ids"), limits)
    stop = request.get("stop_conditions") or {}
    output = request.get("output_options") or {}
    options = request.get("sampling_options") or {}
    ignore_eos = bool(stop.get("ignore_eos"))
    eos = (
        ()
        if ignore_eos
        else (*(stop.get("stop_token_ids_hidden") or ()), *(request.get("eos_token_ids") or ()))
    )
    visible = tuple(dict.fromkeys(stop.get("stop_token_ids_visible") or ()))
    hidden = dict.fromkeys((*eos, *(stop.get("stop_token_ids") or ())))
    routing = request.get("routing") or {}
    context_left = max(1, limits.max_model_len - len(tokens) // 4)
    max_tokens, min_tokens = _count(stop, "max_tokens", context_left), _count(stop, "min_tokens", 0)
    if max_tokens < 1:
        raise InvalidRequest("max_tokens=0 leaves nothing to generate; ask for at least 1")
    if min_tokens > max_tokens and not first_only:
        raise InvalidRequest(f"min_tokens={min_tokens} is more than max_tokens={max_tokens}")
    return ParsedRequest(
        tokens=tokens,
        salt=str(_either(routing.get("cache_salt"), "")),
        sampling=_sampling(options, _count(output, "logprobs", None), limits, defaults),
        max_tokens=min(max_tokens, context_left),
        min_tokens=min(min_tokens, context_left),
        stop_hidden=tuple(token for token in hidden if token not in visible),
        stop_visible=visible,
        stop_strings=tuple(dict.fromkeys(text for text in stop.get("stop") or () if text)),
        keep_stop_string=bool(options.get("include_stop_str_in_output")),
        skip_special=output.get("skip_special_tokens") is not False,
    )


def _refuse_unsupported(request: Mapping[str, Any]) -> None:
    for key, what in _REFUSED.items():
        if request.get(key):
            raise InvalidRequest(f"{what} are not supported; this worker takes text only")
    routing = request.get("routing") or {}
    if routing.get("lora_name"):
        raise InvalidRequest(
            f"LoRA adapter {routing['lora_name']!r} is not loaded; use the base model's name"
        )
    for group, supported in _GROUPS.items():
        for key, value in (request.get(group) or {}).items():
            if key not in supported and value not in (None, False, [], {}):
                raise InvalidRequest(_unsupported(key))
    options = request.get("sampling_options") or {}
    for key in ("n", "best_of"):
        if _either(options.get(key), 1) != 1:
            raise InvalidRequest(
                f"{key}={options[key]} is not supported; ask for one choice per request ({key}=1)"
            )
    if _either(options.get("length_penalty"), 1.0) != 1.0:
        raise InvalidRequest(_unsupported("length_penalty"))


def _unsupported(key: str) -> str:
    names = {
        "guided_decoding": "constrained output (response_format, guided decoding, a required tool call)",
        "prompt_logprobs": "prompt_logprobs (and echo)",
        "use_beam_search": "beam search",
    }
    return f"{names.get(key, key)} is not supported by this worker; leave it out"


def _tokens(token_ids: Any, limits: Limits) -> bytes:
    if isinstance(token_ids, (bytes, bytearray, memoryview)):
        ids = np.frombuffer(token_ids, dtype="<i4").astype(np.int64)
    else:
        try:
            ids = np.asarray([] if token_ids is None else token_ids, dtype=np.int64)
        except (OverflowError, TypeError, ValueError) as error:
            raise InvalidRequest("token_ids should be a flat list of integers") from error
    if ids.ndim != 1:
        raise InvalidRequest("token_ids should be a flat list of integers")
    if len(ids) == 0:
        raise InvalidRequest("the prompt is empty; give at least one token")
    if len(ids) > limits.max_model_len:
        raise InvalidRequest(
            f"the prompt has {len(ids)} tokens, more than the context length of {limits.max_model_len}; "
            "shorten it"
        )
    outside = ids[(ids < 0) | (ids >= limits.vocab_size)]
    if len(outside):
        raise InvalidRequest(
            f"token id {int(outside[0])} is outside the vocabulary; ids are 0 to {limits.vocab_size - 1}"
        )
    return ids.astype("<u4").tobytes()


def _sampling(
    options: Mapping[str, Any], logprobs: int | None, limits: Limits, defaults: SamplingParams
) -> SamplingParams:
    temperature = options.get("temperature")
    if temperature is None:
        temperature = defaults.temperature
        shaping = any(options.get(key) is not None for key in ("top_p", "top_k", "min_p", "seed"))
        # Who shapes or seeds the draw wants one, though the model's default is greedy.
        if shaping and temperature == 0.0:
            temperature = 1.0
    top_p = float(_either(options.get("top_p"), defaults.top_p))
    top_k = int(_either(options.get("top_k"), defaults.top_k))
    if top_p == 0.0:
        # An empty nucleus still holds its best token.
        top_p, top_k = 1.0, 1
    params = msgspec.structs.replace(
        defaults,
        temperature=float(temperature),
        top_p=top_p,
        # Clients write "keep every token" as 0 or -1.
        top_k=0 if top_k == -1 else top_k,
        min_p=float(_either(options.get("min_p"), defaults.min_p)),
        seed=options.get("seed"),
        presence_penalty=float(_either(options.get("presence_penalty"), 0.0)),
        frequency_penalty=float(_either(options.get("frequency_penalty"), 0.0)),
        repetition_penalty=float(_either(options.get("repetition_penalty"), defaults.repetition_penalty)),
        logprobs=logprobs,
    )
    validate(params, limits.top_logprobs)
    return params


def _count(group: Mapping[str, Any], key: str, default: Any) -> Any:
    value = group.get(key)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InvalidRequest(f"{key}={value!r} should be a whole number of at least 0")
    return value


def _either(value: Any, default: Any) -> Any:
    return default if value is None else value

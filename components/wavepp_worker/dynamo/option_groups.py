"""The groups of options in a request, and which of them this worker honours. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wavepp_worker.dynamo.sampling_options import SAMPLING_KEYS
from wavepp_worker.errors import InvalidRequest

_HONOURED = {
    "sampling_options": SAMPLING_KEYS
    | {"n", "best_of", "length_penalty", "include_stop_str_in_output", "guided_decoding"},
    "stop_conditions": frozenset(
        {
            "max_tokens",
            "min_tokens",
            "stop",
            "stop_token_ids",
            "stop_token_ids_visible",
            "stop_token_ids_hidden",
            "ignore_eos",
        }
    ),
    "output_options": frozenset({"logprobs", "skip_special_tokens", "formatted_prompt"}),
}
_OTHER_THAN_TEXT = {
    "multi_modal_data": "images, audio and video",
    "mm_processor_kwargs": "images, audio and video",
    "encoder_result": "images, audio and video",
    "prompt_embeds": "prompt embeddings",
}


@dataclass(frozen=True)
class OptionGroups:
    """What a request says beside its prompt, by Dynamo's keys; a key that says nothing is left out.

    Attributes:
        sampling: ``sampling_options``.
        stop: ``stop_conditions``.
        output: ``output_options``.
        routing: ``routing``.
    """

    sampling: Mapping[str, Any]
    stop: Mapping[str, Any]
    output: Mapping[str, Any]
    routing: Mapping[str, Any]


def read_option_groups(request: Mapping[str, Any]) -> OptionGroups:
    """The groups of a request.

    Raises:
        InvalidRequest: it asks for something this worker cannot do.
    """
    for key, what in _OTHER_THAN_TEXT.items():
        if request.get(key):
            raise InvalidRequest(f"{what} are not supported; this worker takes text only")
    groups = OptionGroups(
        sampling=_said(request, "sampling_options"),
        stop=_said(request, "stop_conditions"),
        output=_said(request, "output_options"),
        routing=_said(request, "routing"),
    )
    for name, honoured in _HONOURED.items():
        for key, value in _said(request, name).items():
            if key not in honoured and value not in (False, [], {}):
                raise InvalidRequest(_unsupported(key))
    for key in ("n", "best_of"):
        if groups.sampling.get(key, 1) != 1:
            raise InvalidRequest(
                f"{key}={groups.sampling[key]} is not supported; ask for one choice per request ({key}=1)"
            )
    if groups.sampling.get("length_penalty", 1.0) != 1.0:
        raise InvalidRequest(_unsupported("length_penalty"))
    return groups


def _said(request: Mapping[str, Any], name: str) -> dict[str, Any]:
    group = request.get(name) or {}
    if not isinstance(group, Mapping):
        raise InvalidRequest(f"{name}={group!r} should be an object")
    # The frontend writes every key it knows, most of them null.
    return {key: value for key, value in group.items() if value is not None}


def _unsupported(key: str) -> str:
    names = {
        "prompt_logprobs": "prompt_logprobs (and echo)",
        "use_beam_search": "beam search",
    }
    return f"{names.get(key, key)} is not supported by this worker; leave it out"

"""What Dynamo's ``/v1/responses`` drops without a word, and the other paths honour: refused. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

RESPONSES_PATH = "/v1/responses"
_NOTHING: tuple[Any, ...] = (None, False, "", [], {})
_DROPPED: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(
        (
            "logit_bias",
            "stop",
            "stop_token_ids",
            "min_tokens",
            "min_p",
            "presence_penalty",
            "frequency_penalty",
            "ignore_eos",
            "include_stop_str_in_output",
            "guided_json",
            "guided_regex",
            "guided_grammar",
            "guided_choice",
            "logprobs",
            "top_logprobs",
        ),
        _NOTHING,
    ),
    "n": (*_NOTHING, 1),
    "top_k": (*_NOTHING, -1),
    "repetition_penalty": (None, 1),
    "seed": (None,),
    "skip_special_tokens": (None, True),
}
"""Fields with the values that ask for nothing."""
_ELSEWHERE = {
    "cache_salt": "nvext.cache_salt",
    "priority": "nvext.agent_hints.priority",
    "response_format": "text.format",
}
"""Where such a request has them."""
_LOGPROBS = "message.output_text.logprobs"


def dropped_by_responses(body: Mapping[str, Any]) -> str | None:
    """Why a request to ``RESPONSES_PATH`` is refused; None if nothing of it is lost.

    Args:
        body: the decoded JSON body.
    """
    for key, place in _ELSEWHERE.items():
        if body.get(key) not in _NOTHING:
            return f"{key} is not supported by {RESPONSES_PATH}; give it as {place}"
    for key, neutral in _DROPPED.items():
        if body.get(key) not in neutral:
            return f"{key} is not supported by {RESPONSES_PATH}; leave it out, or ask /v1/chat/completions"
    included = body.get("include")
    if isinstance(included, list) and _LOGPROBS in included:
        return f"include of {_LOGPROBS} is not supported by {RESPONSES_PATH}; ask /v1/chat/completions for logprobs"
    return None

"""What Dynamo's ``/v1/responses`` drops without a word: refused. Pure.

Its other paths refuse what they do not know; this one takes any field. So what it has is listed here, and what it has
and does not obey is refused as well, unless no answer is another for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wavepp_worker.dynamo_version import dynamo_is_at_least

RESPONSES_PATH = "/v1/responses"
_FIRST_LIKE_CHATS = (1, 6)
"""The first Dynamo that obeys ``_TAKEN_LATER`` here, and refuses tools other than functions itself."""
_OBEYED = frozenset(
    {
        "include",
        "input",
        "instructions",
        "max_output_tokens",
        "model",
        "nvext",
        "parallel_tool_calls",
        "reasoning",
        "stream",
        "stream_options",
        "temperature",
        "text",
        "tool_choice",
        "tools",
        "top_p",
    }
)
_TAKEN_LATER = frozenset({"max_tokens", "chat_template_args", "chat_template_kwargs"})
_REFUSED_ELSEWHERE = frozenset({"background", "max_tool_calls", "previous_response_id", "prompt"})
"""By ``openai_checks`` or Dynamo, where they ask for something."""
_OF_NO_ANSWER = frozenset(
    {
        "client_metadata",
        "metadata",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)
"""What OpenAI's clients say of themselves, or ask of OpenAI's caches and queues."""
_TAKEN = _OBEYED | _REFUSED_ELSEWHERE | _OF_NO_ANSWER

_EMPTY: tuple[Any, ...] = (None, "", [], {})
_NOTHING: tuple[Any, ...] = (*_EMPTY, False)
_OF_CHATS: Mapping[str, tuple[Any, ...]] = {
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
    "chat_template_args": _EMPTY,
    "chat_template_kwargs": _EMPTY,
}
"""Fields of ``/v1/chat/completions``, with the values that ask for nothing."""
_ASKING_NOTHING = {**_OF_CHATS, "priority": _NOTHING, "truncation": (None, "disabled")}
_INSTEAD = {
    **dict.fromkeys(_OF_CHATS, "leave it out, or ask /v1/chat/completions"),
    "cache_salt": "give it as nvext.cache_salt",
    "conversation": "send the whole conversation as input",
    "max_completion_tokens": "give it as max_output_tokens",
    "max_tokens": "give it as max_output_tokens",
    "messages": "give them as input",
    "priority": "give it as nvext.agent_hints.priority",
    "reasoning_effort": "give it as reasoning.effort",
    "response_format": "give it as text.format",
    "truncation": "leave it out, and send no more input than fits",
}
_LOGPROBS = "message.output_text.logprobs"
_USUAL_VERBOSITY = (None, "medium")
_MOST_OF_A_NAME = 64


def dropped_by_responses(body: Mapping[str, Any], *, like_chats: bool | None = None) -> str | None:
    """Why a request to ``RESPONSES_PATH`` is refused; None if nothing of it is lost.

    Args:
        body: the decoded JSON body.
        like_chats: whether the frontend is of ``_FIRST_LIKE_CHATS`` or later; None for what is installed.
    """
    if like_chats is None:
        like_chats = dynamo_is_at_least(*_FIRST_LIKE_CHATS)
    taken = _TAKEN | _TAKEN_LATER if like_chats else _TAKEN
    for key, value in body.items():
        if key not in taken and value not in _ASKING_NOTHING.get(key, _EMPTY):
            return _refused(key[:_MOST_OF_A_NAME], _INSTEAD.get(key, "leave it out"))
    included, text, tools = (body.get(key) for key in ("include", "text", "tools"))
    if isinstance(included, list) and _LOGPROBS in included:
        return _refused(f"include of {_LOGPROBS}", "ask /v1/chat/completions for logprobs")
    if isinstance(text, Mapping) and text.get("verbosity") not in _USUAL_VERBOSITY:
        return _refused("text.verbosity", "say in the instructions how long an answer is to be")
    for tool in tools if isinstance(tools, list) and not like_chats else ():
        kind = tool.get("type", "function") if isinstance(tool, Mapping) else "function"
        if kind != "function":
            return _refused(f"a tool of type {str(kind)[:_MOST_OF_A_NAME]}", "give functions alone")
    return None


def _refused(what: str, instead: str) -> str:
    return f"{what} is not supported by {RESPONSES_PATH}; {instead}"

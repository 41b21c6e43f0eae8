"""What of an OpenAI request this deployment cannot honour, told before it is routed. Pure.

Dynamo's frontend checks much itself, but not everything. Token ids it takes as they are, some parameters it
drops without a word (``suffix``), and what a worker refuses it reports as an internal error
on some paths and versions (1.4: any ``/v1/completions`` and any stream). So these are refused up front, but for the
ids of a long prompt, which take long to read: they are looked at once that error is there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from wavepp_worker.dynamo.carried_fields import refused_annotation
from wavepp_worker.dynamo.choices import MOST_CHOICES, choices_wanted
from wavepp_worker.dynamo.openai_ranges import (
    bias_out_of_range,
    sampling_out_of_range,
    stop_out_of_range,
    stop_without_effect,
    too_few_tokens,
)
from wavepp_worker.dynamo.openai_responses import RESPONSES_PATH, dropped_by_responses
from wavepp_worker.dynamo.request_headers import TENANT_HEADER
from wavepp_worker.dynamo.worker_choice import refused_nvext
from wavepp_worker.errors import InvalidRequest
from wavepp_worker.request_checks import are_ids, check_salt, first_outside, outside_vocabulary

CHECKED_PATHS = ("/v1/completions", "/v1/chat/completions", RESPONSES_PATH)
MOST_PROMPTS = 128
"""Prompts of one request; the frontend runs all of them at once."""

_UNSUPPORTED = (
    "suffix",
    "echo",
    "return_tokens_as_token_ids",
    "prompt_embeds",
    "bad_words_token_ids",
    "logprob_token_ids",
    "background",
    "audio",
)
_UNSUPPORTED_IF_GIVEN = ("prompt_logprobs", "allowed_token_ids", "web_search_options")
"""Of these 0, an empty list and an empty object ask for something, too."""
_TEXT_PARTS = (None, "text", "refusal", "input_text", "output_text")
_EMPTY: tuple[Any, ...] = (None, False, "", [], {})


def refusal(path: str, body: Any, vocab_size: int | None) -> str | None:
    """Why a request cannot be honoured, as a sentence; None if nothing speaks against it.

    Args:
        path: the URL path; only those of ``CHECKED_PATHS`` are looked at.
        body: the decoded JSON body.
        vocab_size: token ids are below it; None if unknown.
    """
    if path not in CHECKED_PATHS or not isinstance(body, Mapping):
        return None
    if path == RESPONSES_PATH and (dropped := dropped_by_responses(body)) is not None:
        return dropped
    checks = (
        _choices,
        _unsupported,
        _prompt(vocab_size),
        _messages,
        _salt,
        refused_nvext,
        refused_annotation,
        sampling_out_of_range,
        stop_out_of_range,
        stop_without_effect,
        too_few_tokens,
        bias_out_of_range(vocab_size),
    )
    return next((sentence for check in checks if (sentence := check(body)) is not None), None)


def _choices(body: Mapping[str, Any]) -> str | None:
    count, best = choices_wanted(body), body.get("best_of")
    if best not in (None, 1, count):
        return f"best_of={best} is not supported; ask for as many as n, and choose among them"
    prompt = body.get("prompt")
    prompts = len(prompt) if count > 1 and isinstance(prompt, list) and _several(prompt) else 1
    if count > 1 and count * prompts > MOST_CHOICES:
        return f"{count * prompts} choices in one request; ask for at most {MOST_CHOICES}"
    return None


def _unsupported(body: Mapping[str, Any]) -> str | None:
    for key in _UNSUPPORTED:
        if body.get(key) not in _EMPTY:
            return f"{key} is not supported; leave it out"
    for key in _UNSUPPORTED_IF_GIVEN:
        if body.get(key) is not None:
            return f"{key} is not supported; leave it out"
    modalities = body.get("modalities")
    if isinstance(modalities, list) and any(each != "text" for each in modalities):
        return f"modalities={modalities} is not supported; answers are text, so leave it out"
    if body.get("detokenize") is False:
        return "detokenize=false is not supported; leave it out, as every answer has its text"
    if body.get("previous_response_id") is not None:
        return "previous_response_id is not supported; send the whole conversation as input"
    if body.get("top_logprobs") not in _EMPTY and not body.get("logprobs"):
        return "top_logprobs without logprobs says nothing; set logprobs to true as well, or leave it out"
    options = body.get("nvext")
    if isinstance(options, Mapping) and options.get("max_thinking_tokens") is not None:
        return "nvext.max_thinking_tokens is not supported; leave it out, and bound the answer by max_tokens"
    return None


def _prompt(vocab_size: int | None) -> Callable[[Mapping[str, Any]], str | None]:
    def check(body: Mapping[str, Any]) -> str | None:
        prompt = body.get("prompt")
        if not isinstance(prompt, list) or (vocab_size is not None and are_ids(prompt, vocab_size)):
            return None
        several = _several(prompt)
        if len(prompt) > MOST_PROMPTS and several:
            return f"{len(prompt)} prompts in one request; send at most {MOST_PROMPTS} at a time"
        if vocab_size is None:
            return None
        for ids in (prompt, *(part for part in prompt if isinstance(part, list))) if several else (prompt,):
            bad = None if are_ids(ids, vocab_size) else first_outside(ids, vocab_size)
            if bad is not None:
                return outside_vocabulary(bad, vocab_size)
        return None

    return check


def _several(prompt: list[Any]) -> bool:
    """Whether these are prompts, and not the token ids of one."""
    # By their types, as of JSON: to look at a million of ids one by one would hold up everybody else.
    return not {list, str}.isdisjoint(map(type, prompt))


def _messages(body: Mapping[str, Any]) -> str | None:
    for key in ("messages", "input"):
        messages = body.get(key)
        for message in messages if isinstance(messages, list) else []:
            content = message.get("content") if isinstance(message, Mapping) else None
            for part in content if isinstance(content, list) else []:
                kind = part.get("type") if isinstance(part, Mapping) else None
                if kind not in _TEXT_PARTS:
                    return f"a message has content of type {kind!r}; this deployment takes text only"
    return None


def refused_tenant(headers: Mapping[str, str]) -> str | None:
    """Why a request with these headers is refused; None if it is not. Names are in whatever case."""
    return _refused_salt(headers.get(TENANT_HEADER), f"the header {TENANT_HEADER}")


def _salt(body: Mapping[str, Any]) -> str | None:
    options = body.get("nvext")
    own, extended = (
        group.get("cache_salt") for group in (body, options if isinstance(options, Mapping) else {})
    )
    if own and extended and own != extended:
        # To the frontend the second counts, which a gateway that sets the first may not know.
        return "cache_salt and nvext.cache_salt differ; give the one or the other"
    return next((said for salt in (own, extended) if (said := _refused_salt(salt))), None)


def _refused_salt(salt: Any, name: str = "cache_salt") -> str | None:
    try:
        check_salt(str(salt or ""), name)
    except InvalidRequest as error:
        return str(error)
    return None

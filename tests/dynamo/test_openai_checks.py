from __future__ import annotations

from typing import Any

import pytest
from wavepp_worker.dynamo.openai_checks import refusal, refused_tenant

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
HELLO = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    ("path", "body", "sentence"),
    [
        (
            COMPLETIONS,
            {"prompt": [1, 2, 100]},
            "token id 100 is outside the vocabulary of 100 tokens; ids are 0 to 99",
        ),
        (COMPLETIONS, {"prompt": [[1], [2, -5]]}, "token id -5"),
        (COMPLETIONS, {"prompt": "x", "best_of": 3}, "best_of=3"),
        (COMPLETIONS, {"prompt": "x", "n": 2, "best_of": 3}, "best_of=3"),
        (COMPLETIONS, {"prompt": ["a"] * 3, "n": 50}, "150 choices in one request; ask for at most 128"),
        (COMPLETIONS, {"prompt": [[1], [2]], "n": 65}, "130 choices"),
        (CHAT, {**HELLO, "n": 129}, "129 choices"),
        (RESPONSES, {"input": "x", "n": 2}, "n is not supported by /v1/responses"),
        (RESPONSES, {"input": "x", "logit_bias": {"5": 1}}, "logit_bias is not supported by /v1/responses"),
        (COMPLETIONS, {"prompt": "x", "echo": True}, "echo"),
        (COMPLETIONS, {"prompt": "x", "suffix": "y"}, "suffix"),
        (CHAT, {**HELLO, "modalities": ["text", "audio"]}, "modalities="),
        (CHAT, {**HELLO, "audio": {"voice": "ash", "format": "wav"}}, "audio"),
        (CHAT, {**HELLO, "web_search_options": {}}, "web_search_options"),
        (
            COMPLETIONS,
            {"prompt": "x", "logit_bias": {"100": 1}},
            "logit_bias: token id 100 is outside the vocabulary",
        ),
        (
            CHAT,
            {**HELLO, "logit_bias": {"5": 101}},
            "logit_bias of token 5 is 101.0, but must be from -100 to 100",
        ),
        (CHAT, {**HELLO, "logit_bias": {"x": 1}}, "logit_bias has a token 'x'; its keys should be token ids"),
        (CHAT, {**HELLO, "logit_bias": {"5": "1"}}, "should be a number"),
        (CHAT, {**HELLO, "logit_bias": [[5, 1]]}, "should be an object"),
        (CHAT, {**HELLO, "logit_bias": {str(n): 1 for n in range(1025)}}, "logit_bias has 1025 tokens"),
        (COMPLETIONS, {"prompt": "x", "prompt_logprobs": 1}, "prompt_logprobs"),
        (COMPLETIONS, {"prompt": "x", "prompt_logprobs": 0}, "prompt_logprobs"),
        (CHAT, {**HELLO, "allowed_token_ids": [70, 71]}, "allowed_token_ids"),
        (CHAT, {**HELLO, "allowed_token_ids": []}, "allowed_token_ids"),
        (CHAT, {**HELLO, "bad_words_token_ids": [[70]]}, "bad_words_token_ids"),
        (COMPLETIONS, {"prompt": "x", "logprob_token_ids": [1]}, "logprob_token_ids"),
        (COMPLETIONS, {"prompt": "x", "detokenize": False}, "detokenize=false"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "'image_url'"),
        (COMPLETIONS, {"prompt": [[1]] * 129}, "129 prompts"),
        (COMPLETIONS, {"prompt": ["a"] * 129}, "129 prompts"),
        (COMPLETIONS, {"prompt": "x", "nvext": {"dp_rank": 0}}, "nvext.dp_rank"),
        (
            COMPLETIONS,
            {"prompt": "x", "nvext": {"max_thinking_tokens": 0}},
            "nvext.max_thinking_tokens is not",
        ),
        (COMPLETIONS, {"prompt": "x", "repetition_penalty": 1e-40}, "repetition_penalty"),
        (COMPLETIONS, {"prompt": "x", "min_tokens": 5, "max_tokens": 4}, "min_tokens=5"),
        (COMPLETIONS, {"prompt": "x", "stop": list("abcde")}, "5 stop strings"),
        (COMPLETIONS, {"prompt": "x", "cache_salt": "s" * 1025}, "cache_salt has 1025 bytes"),
        (CHAT, {**HELLO, "nvext": {"cache_salt": "s" * 1025}}, "cache_salt has 1025 bytes"),
        (
            CHAT,
            {**HELLO, "cache_salt": "a", "nvext": {"cache_salt": "b"}},
            "cache_salt and nvext.cache_salt differ",
        ),
        (CHAT, {**HELLO, "top_logprobs": 3}, "top_logprobs without logprobs"),
        (CHAT, {**HELLO, "top_logprobs": 3, "logprobs": False}, "top_logprobs without logprobs"),
        (RESPONSES, {"input": "x", "previous_response_id": ""}, "previous_response_id"),
        (RESPONSES, {"input": "x", "background": True}, "background"),
        (RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "'input_image'"),
    ],
)
def test_what_cannot_be_honoured_is_named(path: str, body: dict[str, Any], sentence: str) -> None:
    assert sentence in (refusal(path, body, 100) or "")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {**HELLO, "cache_salt": "a", "nvext": {"cache_salt": "a"}}),
        (CHAT, {**HELLO, "cache_salt": "a", "nvext": {"cache_salt": None}}),
        (CHAT, {**HELLO, "logprobs": True, "top_logprobs": 3}),
        (CHAT, {**HELLO, "top_logprobs": 0}),
        (COMPLETIONS, {"prompt": [0, 99], "n": 1, "echo": False, "logit_bias": {}, "suffix": None}),
        (CHAT, {**HELLO, "modalities": ["text"], "audio": None, "web_search_options": None}),
        (COMPLETIONS, {"prompt": ["a", "b"], "stop": ["x"], "nonsense": 1}),
        (COMPLETIONS, {"prompt": "x", "n": 2, "best_of": 2, "logit_bias": {"5": -100, "99": 100}}),
        (COMPLETIONS, {"prompt": [1] * 200, "n": 128}),
        (CHAT, {**HELLO, "response_format": {"type": "text"}, "tool_choice": "auto", "tools": []}),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]}),
        (CHAT, {**HELLO, "nvext": {"max_thinking_tokens": None}}),
        (CHAT, {**HELLO, "prompt_logprobs": None, "allowed_token_ids": None, "detokenize": True}),
        (CHAT, {**HELLO, "bad_words_token_ids": [], "logprob_token_ids": []}),
        (CHAT, {"messages": "odd"}),
        (CHAT, [1, 2]),
        ("/v1/models", {"n": 7}),
        (COMPLETIONS, {"prompt": [1] * 129}),
        (RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}]}),
    ],
)
def test_everything_else_is_left_to_the_frontend(path: str, body: Any) -> None:
    assert refusal(path, body, 100) is None


def test_token_ids_pass_if_the_vocabulary_is_unknown() -> None:
    assert refusal(COMPLETIONS, {"prompt": [10**9]}, None) is None


def test_a_tenant_in_a_header_is_a_salt_like_others() -> None:
    assert refused_tenant({"x-tenant-id": "s" * 1025}) == (
        "the header x-tenant-id has 1025 bytes, this deployment takes at most 1024; give a hash of it"
    )
    assert refused_tenant({"x-tenant-id": "s" * 1024}) is None
    assert refused_tenant({}) is None

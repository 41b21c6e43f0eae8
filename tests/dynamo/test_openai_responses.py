"""Fields that ``/v1/responses`` of Dynamo would drop; each was seen to reach no worker, with ai-dynamo 1.4.2."""

from __future__ import annotations

from typing import Any

import pytest
from wavepp_worker.dynamo.openai_checks import refusal

RESPONSES = "/v1/responses"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("seed", 0),
        ("seed", 7),
        ("stop", ["x"]),
        ("stop_token_ids", [3]),
        ("min_tokens", 1),
        ("top_k", 1),
        ("min_p", 0.1),
        ("repetition_penalty", 1.1),
        ("presence_penalty", 0.5),
        ("frequency_penalty", -0.5),
        ("ignore_eos", True),
        ("guided_regex", "a+"),
        ("guided_json", {"type": "object"}),
        ("skip_special_tokens", False),
        ("include_stop_str_in_output", True),
        ("top_logprobs", 2),
        ("priority", 3),
        ("logit_bias", {"5": 1}),
        ("n", 2),
        ("cache_salt", "a tenant"),
        ("response_format", {"type": "json_object"}),
        ("include", ["message.output_text.logprobs"]),
    ],
)
def test_what_would_be_dropped_is_refused_by_name(field: str, value: Any) -> None:
    sentence = refusal(RESPONSES, {"input": "x", field: value}, 300)
    assert sentence is not None
    assert sentence.startswith(field)
    assert RESPONSES in sentence


@pytest.mark.parametrize(
    "body",
    [
        {
            "temperature": 0.5,
            "top_p": 0.9,
            "max_output_tokens": 4,
            "stream": True,
            "nvext": {"cache_salt": "a"},
        },
        {
            "n": 1,
            "seed": None,
            "top_k": -1,
            "stop": [],
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "top_logprobs": 0,
        },
        {
            "presence_penalty": 0,
            "skip_special_tokens": True,
            "ignore_eos": False,
            "include": [],
            "logit_bias": {},
        },
        {
            "text": {"format": {"type": "json_object"}},
            "tools": [],
            "tool_choice": "auto",
            "truncation": "disabled",
        },
    ],
)
def test_what_is_honoured_or_asks_for_nothing_is_not(body: dict[str, Any]) -> None:
    assert refusal(RESPONSES, {"input": "x", **body}, 300) is None

"""Fields that ``/v1/responses`` of Dynamo would drop: none was seen to reach a worker, with 1.4.2 and 1.6.1."""

from __future__ import annotations

from typing import Any

import pytest
from wavepp_worker.dynamo.openai_checks import refusal
from wavepp_worker.dynamo.openai_responses import dropped_by_responses

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
        ("max_completion_tokens", 3),
        ("reasoning_effort", "low"),
        ("messages", [{"role": "user", "content": "x"}]),
        ("conversation", "conv_1"),
        ("conversation", {"id": "conv_1"}),
        ("truncation", "auto"),
        ("thinking", {"type": "enabled"}),
        ("chat_template", "{{ x }}"),
        ("structured_outputs", {"choice": ["a"]}),
        ("use_beam_search", True),
        ("truncate_prompt_tokens", 2),
        ("add_generation_prompt", False),
        ("context_management", [{"type": "compaction"}]),
        ("temprature", 0.5),
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
        {
            "tools": [{"type": "function", "name": "f", "parameters": {}}, "no tool"],
            "tool_choice": {"type": "function", "name": "f"},
            "parallel_tool_calls": False,
            "reasoning": {"effort": "low", "summary": "auto"},
            "text": {"verbosity": "medium"},
            "instructions": "be brief",
            "include": ["reasoning.encrypted_content"],
            "stream_options": {"include_obfuscation": False},
        },
        {
            "metadata": {"a": "b"},
            "client_metadata": {"a": "b"},
            "prompt_cache_key": "k",
            "prompt_cache_retention": "24h",
            "safety_identifier": "s",
            "service_tier": "auto",
            "store": True,
            "user": "u",
        },
        {
            "background": False,
            "conversation": None,
            "max_tokens": None,
            "max_tool_calls": 3,
            "previous_response_id": None,
            "prompt": {"id": "p"},
            "anything": None,
        },
    ],
)
def test_what_is_honoured_or_asks_for_nothing_is_not(body: dict[str, Any]) -> None:
    assert refusal(RESPONSES, {"input": "x", **body}, 300) is None


@pytest.mark.parametrize(
    ("field", "instead"),
    [
        ("max_tokens", "give it as max_output_tokens"),
        ("max_completion_tokens", "give it as max_output_tokens"),
        ("reasoning_effort", "give it as reasoning.effort"),
        ("stop", "leave it out, or ask /v1/chat/completions"),
        ("conversation", "send the whole conversation as input"),
        ("a typo", "leave it out"),
    ],
)
def test_what_to_do_instead_is_said(field: str, instead: str) -> None:
    body = {"input": "x", field: "3"}
    assert dropped_by_responses(body, like_chats=False) == (
        f"{field} is not supported by {RESPONSES}; {instead}"
    )


def test_a_name_of_a_megabyte_is_not_said_back() -> None:
    assert len(dropped_by_responses({"x" * (1 << 20): 1}) or "") < 200


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 3),
        ("max_tokens", 0),
        ("chat_template_args", {"enable_thinking": False}),
        ("chat_template_kwargs", {"enable_thinking": False}),
        ("tools", [{"type": "function", "name": "f"}, {"type": "web_search"}]),
    ],
)
def test_what_later_versions_obey_or_refuse_themselves_is_left_to_them(field: str, value: Any) -> None:
    assert dropped_by_responses({"input": "x", field: value}, like_chats=True) is None
    assert dropped_by_responses({"input": "x", field: value}, like_chats=False) is not None


def test_verbosity_changes_nothing() -> None:
    sentence = dropped_by_responses({"input": "x", "text": {"verbosity": "low"}})
    assert sentence is not None
    assert sentence.startswith("text.verbosity is not supported")

"""Dynamo's parsers of tool calls and of reasoning, behind which our worker says word for word what they look for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.served_graph import ServedGraph

pytest.importorskip("llguidance")
pytestmark = pytest.mark.e2e

CHAT = "/v1/chat/completions"
ARGUMENTS = {"city": "Rome", "days": 3}
CALL = f"<tool_call>{json.dumps({'name': 'weather', 'arguments': ARGUMENTS})}</tool_call>"
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]


def say(agg: ServedGraph, **body: Any) -> dict[str, Any]:
    """What a client gets of an answer."""
    messages = [{"role": "user", "content": "hello"}]
    answer = agg.post(CHAT, messages=messages, **{"max_tokens": 300, **body})
    assert answer.status_code == 200, answer.text
    if not body.get("stream"):
        (choice,) = answer.json()["choices"]
        return {**choice["message"], "finish_reason": choice["finish_reason"]}
    events = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
    choices = [choice for event in events for choice in json.loads(event)["choices"]]
    deltas = [choice["delta"] for choice in choices]
    return {
        "content": "".join(delta.get("content") or "" for delta in deltas),
        "reasoning_content": "".join(delta.get("reasoning_content") or "" for delta in deltas),
        "tool_calls": [call for delta in deltas for call in delta.get("tool_calls") or ()],
        "finish_reason": [choice["finish_reason"] for choice in choices if choice["finish_reason"]][-1],
    }


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_and_tool_calls_are_found_in_what_the_model_says(agg: ServedGraph, stream: bool) -> None:
    """To this parser an answer is reasoning until it says that this ends."""
    said = say(agg, guided_choice=[f"how warm is it</think>Let me see. {CALL}"], tools=TOOLS, stream=stream)
    assert said["reasoning_content"] == "how warm is it"
    assert (said["content"] or "").strip() == "Let me see."
    (call,) = said["tool_calls"]
    assert call["function"]["name"] == "weather"
    assert json.loads(call["function"]["arguments"]) == ARGUMENTS
    assert said["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_without_a_call_has_none(agg: ServedGraph, stream: bool) -> None:
    said = say(agg, guided_choice=["hm</think>It is 20 degrees."], tools=TOOLS, stream=stream)
    assert (said["reasoning_content"], said["content"]) == ("hm", "It is 20 degrees.")
    assert not said.get("tool_calls")
    assert said["finish_reason"] == "stop"


def test_a_model_that_does_not_stop_reasoning_says_nothing_else(agg: ServedGraph) -> None:
    said = say(agg, max_tokens=9)
    assert (len(said["reasoning_content"]), said["content"], said["finish_reason"]) == (9, None, "length")

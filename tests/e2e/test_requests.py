"""What clients may ask for, through frontend, prefill and decode: constraints, tools, choices, biases."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.guided import Tokens
from tests.support.served_graph import ServedGraph

pytest.importorskip("llguidance")
jsonschema = pytest.importorskip("jsonschema")
pytestmark = pytest.mark.e2e

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "maximum": 99, "minimum": 0}},
    "required": ["city", "days"],
    "additionalProperties": False,
}  # fmt: skip
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "stop", "parameters": {"type": "object", "maxProperties": 0}}},
]
HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def graph(start: Callable[..., ServedGraph], ascii_model: Path) -> ServedGraph:
    return start(
        "graphs:disagg_wavepp",
        "--PrefillWorker.ServiceArgs.workers=1",
        "--PrefillWorker.pp=2",
        f"--Common.model={ascii_model}",
        "--Common.dtype=float32",
    )


def ask(graph: ServedGraph, path: str, **body: Any) -> dict[str, Any]:
    limits = {"max_output_tokens": 120} if path == RESPONSES else {"max_tokens": 120}
    answer = graph.post(path, **{**limits, **body})
    assert answer.status_code == 200, f"{answer.text}\n{graph.running.log()[-4000:]}"
    return answer.json()


def streamed(graph: ServedGraph, **body: Any) -> list[dict[str, Any]]:
    """The choices of a stream's chunks."""
    answer = graph.post(CHAT, max_tokens=120, stream=True, messages=HELLO, **body)
    assert answer.status_code == 200, answer.text
    events = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    return [choice for event in events[:-1] for choice in json.loads(event)["choices"]]


def test_every_api_has_answers_that_match(graph: ServedGraph) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "trip", "schema": SCHEMA}}

    def chat(**body: Any) -> str:
        return str(ask(graph, CHAT, messages=HELLO, **body)["choices"][0]["message"]["content"])

    def complete(**body: Any) -> str:
        return str(ask(graph, COMPLETIONS, prompt="hello", **body)["choices"][0]["text"])

    def respond(**body: Any) -> str:
        return str(ask(graph, RESPONSES, input="hello", **body)["output"][0]["content"][0]["text"])

    with ThreadPoolExecutor(8) as pool:
        texts = [
            pool.submit(chat, response_format=form),
            pool.submit(chat, guided_json=SCHEMA),
            pool.submit(complete, guided_json=json.dumps(SCHEMA)),
            pool.submit(respond, text={"format": {"type": "json_schema", "name": "trip", "schema": SCHEMA}}),
        ]
        others = {
            r"[a-f]{4}\d": pool.submit(chat, guided_regex=r"[a-f]{4}\d"),
            "left|right": pool.submit(complete, guided_choice=["left", "right"], logprobs=2),
            "a*b": pool.submit(
                complete, guided_grammar='root ::= "a" root | "b"', max_tokens=400, temperature=1
            ),
        }
        plain = pool.submit(complete)
    for text in texts:
        jsonschema.validate(json.loads(text.result()), SCHEMA)
    for pattern, text in others.items():
        assert re.fullmatch(pattern, text.result())
    assert plain.result() == complete(), "an answer beside them, and one alone"
    pieces = streamed(graph, response_format=form)
    jsonschema.validate(json.loads("".join(each["delta"].get("content") or "" for each in pieces)), SCHEMA)
    assert [each["finish_reason"] for each in pieces if each["finish_reason"]] == ["stop"]
    graph.audit()


def test_a_tool_call_that_is_required_is_one(graph: ServedGraph) -> None:
    parameters = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
    answer = ask(graph, CHAT, messages=HELLO, tools=TOOLS, tool_choice="required", max_tokens=500)
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "tool_calls"
    for call in choice["message"]["tool_calls"]:
        arguments = json.loads(call["function"]["arguments"])
        jsonschema.validate(arguments, parameters[call["function"]["name"]])
    named = {"type": "function", "function": {"name": "weather"}}
    (choice,) = ask(graph, CHAT, messages=HELLO, tools=TOOLS, tool_choice=named)["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "weather"
    jsonschema.validate(json.loads(call["function"]["arguments"]), SCHEMA)
    deltas = [each["delta"] for each in streamed(graph, tools=TOOLS, tool_choice=named)]
    parts = [call["function"] for delta in deltas for call in delta.get("tool_calls") or ()]
    assert [part["name"] for part in parts if part.get("name")] == ["weather"]
    jsonschema.validate(json.loads("".join(part.get("arguments") or "" for part in parts)), SCHEMA)


WRONG = {"type": "objekt"}
WRONG_FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": WRONG}}
WRONG_TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "array", "uniqueItems": True}},
}
DEEP = "root ::= " + "(" * 600 + '"a"' + ")" * 600


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body", "sentence"),
    [
        (CHAT, {"response_format": WRONG_FORMAT}, "objekt"),
        (CHAT, {"guided_json": SCHEMA, "guided_whitespace_pattern": " "}, "guided_whitespace_pattern"),
        (CHAT, {"tools": [WRONG_TOOL], "tool_choice": "required"}, "uniqueItems"),
        (COMPLETIONS, {"guided_regex": "(a"}, "unclosed group"),
        (COMPLETIONS, {"guided_regex": "(a?b?c?){200}" * 5000}, "too complex"),
        (COMPLETIONS, {"guided_grammar": DEEP}, "brackets"),
        (COMPLETIONS, {"guided_grammar": "x", "guided_regex": "b"}, "in one request"),
        (RESPONSES, {"text": {"format": {"type": "json_schema", "name": "x", "schema": WRONG}}}, "objekt"),
    ],
)
def test_what_cannot_be_matched_is_refused_with_a_sentence(
    graph: ServedGraph, path: str, body: dict[str, Any], sentence: str, stream: bool
) -> None:
    asked = {CHAT: {"messages": HELLO}, COMPLETIONS: {"prompt": "a"}, RESPONSES: {"input": "a"}}[path]
    answer = graph.post(path, stream=stream, **asked, **body)
    assert answer.status_code == 400, answer.text
    assert sentence in answer.json()["message"]


def test_several_choices_are_answers_of_their_own(graph: ServedGraph) -> None:
    prompt = [[1, 2, 3] * 20, [4, 5, 6] * 20]
    alone = [
        ask(graph, COMPLETIONS, prompt=each, seed=7 + number, temperature=1.0, max_tokens=6)["choices"][0][
            "text"
        ]
        for each in prompt
        for number in range(3)
    ]
    answer = ask(graph, COMPLETIONS, prompt=prompt, n=3, seed=7, temperature=1.0, max_tokens=6)
    assert [choice["text"] for choice in answer["choices"]] == alone
    assert [choice["index"] for choice in answer["choices"]] == list(range(6))
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (120, 36)
    pieces = streamed(graph, n=3, seed=7, temperature=1.0)
    texts = [
        "".join(each["delta"].get("content") or "" for each in pieces if each["index"] == n) for n in range(3)
    ]
    chats = [
        ask(graph, CHAT, messages=HELLO, seed=7 + n, temperature=1.0)["choices"][0]["message"]["content"]
        for n in range(3)
    ]
    assert texts == chats
    assert len(set(texts)) == 3
    (worker,) = graph.workers("PrefillWorker")
    before = graph.metric(worker, "wavepp_reused_tokens_total")
    ask(graph, COMPLETIONS, prompt=list(range(160)), n=4, max_tokens=2)
    assert graph.metric(worker, "wavepp_reused_tokens_total") - before >= 3 * 144, (
        "the prompt is computed once"
    )


def test_biases_count_for_the_first_token_and_all_others(graph: ServedGraph, ascii_model: Path) -> None:
    token = Tokens(ascii_model).ids("z")[0]
    for path, asked in ((COMPLETIONS, {"prompt": "hello"}), (CHAT, {"messages": HELLO})):
        (choice,) = ask(graph, path, logit_bias={str(token): 100}, max_tokens=5, **asked)["choices"]
        assert (choice.get("text") or choice["message"]["content"]) == "zzzzz"
    plain = ask(graph, COMPLETIONS, prompt="hello", max_tokens=8)["choices"][0]["text"]
    banned = {str(each): -100 for each in Tokens(ascii_model).ids(plain)}
    other = ask(graph, COMPLETIONS, prompt="hello", max_tokens=8, logit_bias=banned)["choices"][0]["text"]
    assert not set(other) & set(plain)
    events = graph.post(
        COMPLETIONS, prompt="hello", max_tokens=2, stream=True, logit_bias={str(token): 100}
    ).text
    assert "wavepp" not in events, "nobody sees how it travels"

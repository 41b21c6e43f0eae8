"""What clients may ask for, through frontend, prefill and decode: constraints, tools, choices, biases."""

from __future__ import annotations

import json
import os
import re
import signal
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest
from pydantic import BaseModel, Field

from tests.chaos.processes import command
from tests.support.guided import Tokens
from tests.support.otlp_receiver import Receiver, receiving
from tests.support.rank_pids import ranks_of
from tests.support.served_graph import ServedGraph

if TYPE_CHECKING:
    from openai import OpenAI

pytest.importorskip("llguidance")
jsonschema = pytest.importorskip("jsonschema")
pytest.importorskip("opentelemetry.sdk")
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
def receiver() -> Iterator[Receiver]:
    with receiving() as running:
        yield running


@pytest.fixture(scope="module")
def graph(receiver: Receiver, start: Callable[..., ServedGraph], ascii_model: Path) -> ServedGraph:
    """Its lines are JSON, and it exports its spans."""
    env = {
        "DYN_LOGGING_JSONL": "1",
        "OTEL_EXPORT_ENABLED": "1",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{receiver.url}/v1/traces",
        "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": f"{receiver.url}/v1/logs",
        "OTEL_BSP_SCHEDULE_DELAY": "200",
    }
    return start(
        "graphs:disagg_wavepp",
        "--PrefillWorker.ServiceArgs.workers=1",
        "--PrefillWorker.pp=2",
        f"--Common.model={ascii_model}",
        "--Common.dtype=float32",
        env=env,
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


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_good_schema_is_answered_although_a_judge_of_schemas_died_before(
    graph: ServedGraph, number: signal.Signals
) -> None:
    def choose(only: str) -> str:
        answer = ask(graph, COMPLETIONS, prompt="hello", guided_choice=[f"{only}{number:d}"])
        return str(answer["choices"][0]["text"])

    assert choose("one") == f"one{number:d}"
    judges = [
        pid for pid in graph.running.pids() if "wavepp_worker.model.grammar.judge_process" in command(pid)
    ]
    assert judges
    for pid in judges:
        os.kill(pid, number)
    assert choose("two") == f"two{number:d}"


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


class Trip(BaseModel):
    """``SCHEMA`` as the official client takes it."""

    city: Literal["Rome", "Oslo"]
    days: int = Field(ge=0, le=99)


@pytest.fixture(scope="module")
def openai(graph: ServedGraph) -> Iterator[OpenAI]:
    """The official client of OpenAI's API, which must not try again what fails."""
    library = pytest.importorskip("openai")
    base_url = f"{graph.running.base_url}/v1"
    with library.OpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=60) as client:
        yield client


def test_the_official_client_chats_and_streams_and_completes(graph: ServedGraph, openai: OpenAI) -> None:
    model = graph.running.model
    assert [each.id for each in openai.models.list()] == [model]
    asked: Any = {"model": model, "messages": HELLO, "max_tokens": 12, "temperature": 0}
    whole = openai.chat.completions.create(**asked)
    (choice,) = whole.choices
    assert (choice.finish_reason, choice.message.role) == ("length", "assistant")
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 12
    chunks = list(
        openai.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    )
    texts = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices]
    assert "".join(texts) == choice.message.content
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens
    assert len(set(texts)) > 2, "it comes piece by piece"
    completed = openai.completions.create(model=model, prompt="hello", max_tokens=12, temperature=0)
    pieces = openai.completions.create(model=model, prompt="hello", max_tokens=12, temperature=0, stream=True)
    assert "".join(each.choices[0].text for each in pieces if each.choices) == completed.choices[0].text
    answered = openai.responses.create(model=model, input="hello", max_output_tokens=12, temperature=0)
    assert answered.output_text == choice.message.content


def test_the_official_client_reads_logprobs_and_stops_where_it_says(
    graph: ServedGraph, openai: OpenAI
) -> None:
    asked: Any = {"model": graph.running.model, "messages": HELLO, "max_tokens": 12, "temperature": 0}
    (choice,) = openai.chat.completions.create(**asked, logprobs=True, top_logprobs=3).choices
    assert choice.logprobs is not None
    said = choice.logprobs.content or []
    text = choice.message.content or ""
    assert "".join(each.token for each in said) == text
    assert all(len(each.top_logprobs) == 3 and each.top_logprobs[0].token == each.token for each in said)
    assert all(each.top_logprobs[0].logprob == each.logprob <= 0 for each in said)
    end = text[4:6]
    (stopped,) = openai.chat.completions.create(**asked, stop=[end]).choices
    assert (stopped.finish_reason, stopped.message.content) == ("stop", text[: text.index(end)])
    completed = openai.completions.create(
        model=graph.running.model, prompt="hello", max_tokens=4, temperature=0, logprobs=2
    )
    assert completed.choices[0].logprobs is not None
    assert "".join(completed.choices[0].logprobs.tokens or []) == completed.choices[0].text


def test_the_official_client_calls_tools_and_parses_what_it_asked_for(
    graph: ServedGraph, openai: OpenAI
) -> None:
    asked: Any = {"model": graph.running.model, "messages": HELLO, "max_tokens": 400}
    (choice,) = openai.chat.completions.create(**asked, tools=TOOLS[:1], tool_choice="required").choices
    assert choice.finish_reason == "tool_calls"
    for call in choice.message.tool_calls or ():
        assert call.type == "function"
        Trip.model_validate_json(call.function.arguments)
    parsed = openai.chat.completions.parse(**asked, response_format=Trip).choices[0].message.parsed
    assert isinstance(parsed, Trip)
    with openai.chat.completions.stream(**asked, response_format=Trip) as stream:
        streamed = stream.get_final_completion().choices[0].message.parsed
    assert isinstance(streamed, Trip)


def lines_of(graph: ServedGraph) -> list[dict[str, Any]]:
    """What the launcher printed so far, but a line that it is writing."""
    return [json.loads(line) for line in graph.running.log().splitlines(keepends=True) if line.endswith("\n")]


def test_a_request_is_one_tree_of_spans_from_the_frontend_to_every_rank(
    graph: ServedGraph, receiver: Receiver
) -> None:
    request_id, trace, above = str(uuid.uuid4()), uuid.uuid4().hex, uuid.uuid4().hex[:16]
    headers = {"x-dynamo-request-id": request_id, "traceparent": f"00-{trace}-{above}-01"}
    body = {"model": graph.running.model, "messages": [{"role": "user", "content": trace}], "max_tokens": 4}
    assert graph.http.post(CHAT, json=body, headers=headers).status_code == 200

    def ours() -> dict[bytes, Any]:
        return {span.span_id: span for span in list(receiver.spans) if span.trace_id.hex() == trace}

    def names(spans: dict[bytes, Any]) -> set[str]:
        return {span.name for span in spans.values()}

    def above_all(spans: dict[bytes, Any]) -> set[str]:
        return {span.parent_span_id.hex() for span in spans.values() if span.parent_span_id not in spans}

    whole = {"http-request", "wavepp.admission", "wavepp.handoff.rank", "wavepp.handoff.tail"}
    graph.running.wait_for(lambda: whole <= names(ours()) and above_all(ours()) == {above})
    spans = ours()
    ranks = {
        each.value.int_value
        for span in spans.values()
        for each in span.attributes
        if each.key == "wavepp.rank"
    }
    assert ranks == {0, 1}
    begun = [
        each for span in spans.values() for each in span.attributes if each.key == "wavepp.rank_begin_seconds"
    ]
    assert begun
    assert all(len(each.value.array_value.values) == 2 for each in begun)

    def told() -> list[dict[str, Any]]:
        return [line for line in lines_of(graph) if request_id in json.dumps(line)]

    graph.running.wait_for(lambda: any("request completed" in line["message"] for line in told()))
    assert all(line["request_id"] == request_id for line in told()), told()
    of_trace = [line for line in lines_of(graph) if line.get("trace_id") == trace]
    assert of_trace
    assert all(line["request_id"] == request_id for line in of_trace), of_trace


def test_the_official_client_knows_every_error_by_its_class(graph: ServedGraph, openai: OpenAI) -> None:
    """Last, as a rank is killed: S54, the request on it ends as an error of the server."""
    from openai import APIStatusError, APITimeoutError, BadRequestError, InternalServerError, NotFoundError

    asked: Any = {"model": graph.running.model, "messages": HELLO, "max_tokens": 4}
    with pytest.raises(NotFoundError, match="not found"):
        openai.chat.completions.create(**{**asked, "model": "nobody"})
    for wrong, sentence in (
        ({"temperature": -1}, "temperature"),
        ({"response_format": WRONG_FORMAT}, "objekt"),
        ({"extra_body": {"guided_regex": "(a"}}, "unclosed group"),
        ({"messages": [{"role": "user", "content": "x" * 9000}]}, "tokens"),
    ):
        with pytest.raises(BadRequestError, match=sentence):
            openai.chat.completions.create(**{**asked, **wrong})
        with pytest.raises(BadRequestError, match=sentence):
            list(openai.chat.completions.create(**{**asked, **wrong, "stream": True}))
    (worker,) = graph.workers("PrefillWorker")
    first, last = ranks_of(worker["pid"])
    os.kill(last, signal.SIGSTOP)
    with pytest.raises(APITimeoutError):
        openai.with_options(timeout=0.2).chat.completions.create(**asked)

    def waiting() -> set[str]:
        return {each["request_id"] for each in graph.control(worker, "why")["requests"]}

    # The one that nobody waits for any more may still be there.
    before = waiting()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(openai.completions.create, model=graph.running.model, prompt=[9] * 50)
        graph.running.wait_for(lambda: waiting() - before)
        os.kill(first, signal.SIGKILL)
        error = answer.exception(60)
    assert isinstance(error, InternalServerError)
    assert isinstance(error, APIStatusError)
    assert (error.status_code, "rank 0 was ended by SIGKILL" in error.message) == (503, True)
    graph.running.wait_for(lambda: any("its last words" in line["message"] for line in lines_of(graph)))
    assert all({"time", "level", "target", "message", "process"} <= set(line) for line in lines_of(graph))

"""Answers that must match something, by a worker with real engines: two ranks prefill, a decode engine goes on."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dynamo._core import Context
from dynamo.llm.exceptions import InvalidArgument
from wavepp_worker.dynamo.agg import AggWorker
from wavepp_worker.model.grammar.compiler import GrammarCompiler
from wavepp_worker.model.grammar.grammar import Grammar

from tests.support.dynamo_workers import collect, reasons, tokens
from tests.support.guided import Tokens
from tests.support.json_schemas import random_schema
from tests.support.tiny_models import EOS, VOCABULARY

pytest.importorskip("llguidance")
jsonschema = pytest.importorskip("jsonschema")

SCHEMAS = 200
MOST_TOKENS = 1500
"""Some have 500, most of them blanks between what a schema asks for."""


@pytest.fixture(scope="module")
def worker(tiny_llama: Path) -> Iterator[AggWorker]:
    flags = {
        **{"model": tiny_llama, "served-model-name": "tiny", "pp": 2, "dtype": "float32"},
        **{"kv-tokens": 65536, "decode-kv-tokens": 65536, "max-model-len": 2048},
    }
    worker, _ = asyncio.run(
        AggWorker.from_args([each for key, value in flags.items() for each in (f"--{key}", str(value))])
    )
    worker.open()
    yield worker
    worker.audit()
    worker.close()


def request(seed: int, **guided: Any) -> dict[str, Any]:
    return {
        "token_ids": [seed % 256, *range(20)],
        "sampling_options": {"temperature": 1.0, "seed": seed, "guided_decoding": guided or None},
        "stop_conditions": {"max_tokens": MOST_TOKENS},
        "eos_token_ids": [EOS],
    }


def answers(worker: AggWorker, requests: list[dict[str, Any]]) -> list[tuple[list[int], str]]:
    async def all_of_them() -> list[list[dict[str, Any]]]:
        return await asyncio.gather(
            *(collect(worker, each, Context(f"r{number}")) for number, each in enumerate(requests))
        )

    found = asyncio.run(all_of_them())
    return [(tokens(chunks), reasons(chunks)[-1]) for chunks in found]


def test_answers_to_random_schemas_validate(worker: AggWorker, tiny_llama: Path) -> None:
    spelled = Tokens(tiny_llama)
    schemas = [random_schema(random.Random(seed)) for seed in range(SCHEMAS)]
    got = answers(worker, [request(seed, json=schema) for seed, schema in enumerate(schemas)])
    for schema, (ids, reason) in zip(schemas, got, strict=True):
        assert reason == "stop", schema
        jsonschema.validate(json.loads(spelled.text(ids)), schema, jsonschema.Draft202012Validator)


def test_an_answer_whose_tokens_are_used_up_is_the_beginning_of_one(
    worker: AggWorker, tiny_llama: Path
) -> None:
    schema = {"type": "array", "items": {"type": "boolean"}, "minItems": 40}
    ((ids, reason),) = answers(worker, [request(5, json=schema) | {"stop_conditions": {"max_tokens": 30}}])
    assert (reason, len(ids)) == ("length", 30)
    matcher = GrammarCompiler(tiny_llama, VOCABULARY).compile(Grammar.of_schema(schema))
    assert [matcher.accept(token) for token in ids] == [False] * 30


def test_every_kind_of_constraint_holds_beside_free_answers(worker: AggWorker, tiny_llama: Path) -> None:
    spelled = Tokens(tiny_llama)
    free = request(1)
    (alone,) = answers(worker, [free])
    kinds: list[dict[str, Any]] = [
        {"regex": "[a-f]{3,9}(x|y)"},
        {"choice": ["yes", "no", "per haps"]},
        {"grammar": 'root ::= "a" root | "b" | "c"'},
    ]
    got = answers(worker, [free, *(request(seed, **kind) for seed in range(4) for kind in kinds)])
    assert got[0] == alone, "as without the others"
    patterns = ["[a-f]{3,9}(x|y)", "yes|no|per haps", "a*(b|c)"]
    for number, (ids, reason) in enumerate(got[1:]):
        assert reason == "stop"
        assert re.fullmatch(patterns[number % 3], spelled.text(ids))


def test_an_answer_ends_when_nothing_can_follow_whatever_else_is_asked(
    worker: AggWorker, tiny_llama: Path
) -> None:
    asked = request(3, choice=["yes"])
    asked["stop_conditions"] |= {"min_tokens": 50, "ignore_eos": True}
    one = request(4, regex="a")
    one["stop_conditions"]["max_tokens"] = 1
    (yes, reason), (first, why) = answers(worker, [asked, one])
    assert (Tokens(tiny_llama).text(yes), reason) == ("yes", "stop")
    assert (Tokens(tiny_llama).text(first), why) == ("a", "stop"), "complete, though its tokens are used up"


@pytest.mark.parametrize(
    ("guided", "sentence"),
    [
        ({"regex": "(a"}, "unclosed group"),
        ({"json": {"type": "objekt"}}, "objekt"),
        ({"json": 5}, "a JSON schema is an object"),
        ({"grammar": "start: start"}, "the grammar"),
    ],
)
def test_what_is_wrong_is_a_sentence_to_the_client(
    worker: AggWorker, guided: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InvalidArgument, match=sentence):
        answers(worker, [request(1, **guided)])


def test_a_constraint_that_stop_tokens_leave_nothing_of_is_refused(
    worker: AggWorker, tiny_llama: Path
) -> None:
    (a,) = Tokens(tiny_llama).ids("a")
    asked = request(1, regex="a")
    asked["stop_conditions"] |= {"min_tokens": 1, "stop_token_ids": [a]}
    with pytest.raises(InvalidArgument, match="no token is left to begin an answer with"):
        answers(worker, [asked])

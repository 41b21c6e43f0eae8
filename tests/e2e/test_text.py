"""A request through frontend, pipeline, hand-off and decode answers what transformers' generate answers."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.lora_adapters import make_adapter, merge
from tests.support.reference import Reference
from tests.support.served_graph import ServedGraph

pytestmark = pytest.mark.e2e

LENGTHS = (1, 2, 3, 7, 15, 16, 17, 31, 64, 100, 127, 129, 200, 333, 500, 512, 777, 1024, 1500, 2500, 6000)
KV_BYTES_PER_TOKEN = 6 * 2 * 2 * 16 * 4
"""Tiny model: 6 layers, keys and values, 2 heads of 16, float32."""


@pytest.fixture(scope="module")
def adapters(ascii_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By the names that the graph has them under."""
    root = tmp_path_factory.mktemp("adapters")
    return {
        name: make_adapter(root / name, ascii_model, seed=seed)
        for seed, name in enumerate(("poet", "coder"), start=1)
    }


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(
            ("--PrefillWorker.pp=2", "--PrefillWorker.max_num_batched_tokens=512", "--Common.block_size=16"),
            marks=pytest.mark.soak,
        ),
        (
            "--PrefillWorker.pp=4",
            "--PrefillWorker.max_num_batched_tokens=61",
            "--Common.block_size=7",
            "--PrefillWorker.partition=1,2,1,2",
            "--PrefillWorker.handoff=socket",
        ),
    ],
    ids=["pp2", "pp4"],
)
def graph(
    request: pytest.FixtureRequest,
    start: Callable[..., ServedGraph],
    ascii_model: Path,
    adapters: dict[str, Path],
) -> ServedGraph:
    return start(
        "graphs:disagg_wavepp",
        "--PrefillWorker.ServiceArgs.workers=1",
        f"--Common.model={ascii_model}",
        "--Common.dtype=float32",
        "--Common.lora_modules=" + ",".join(f"{name}={path}" for name, path in adapters.items()),
        *request.param,
    )


def prompts(seed: int) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(256) for _ in range(length)] for length in LENGTHS]


def cached(answer: dict) -> int:
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_greedy_text_equals_generate_cold_warm_and_concurrently(
    graph: ServedGraph, reference: Reference
) -> None:
    """Promise 13 end to end: 21 prompts of 1 to 6,000 tokens, cold, with a reused prefix, and 8 at once."""
    cases = [(prompt, reference.text(prompt, 12)) for prompt in prompts(seed=5)]
    for prompt, expected in cases:
        cold = graph.complete(prompt, max_tokens=12)
        assert cold["choices"][0]["text"] == expected, f"{len(prompt)} tokens, cold"
        assert cold["usage"]["prompt_tokens"] == len(prompt)
        assert cached(cold) == 0
    for prompt, expected in cases:
        warm = graph.complete(prompt, max_tokens=12)
        assert warm["choices"][0]["text"] == expected, f"{len(prompt)} tokens, warm"
        assert cached(warm) > len(prompt) - 18
    with ThreadPoolExecutor(8) as pool:
        fresh = [(prompt[::-1], reference.text(prompt[::-1], 12)) for prompt, _ in cases[4:18]]
        answers = pool.map(lambda case: graph.complete(case[0], max_tokens=12), fresh)
        for (_, expected), answer in zip(fresh, answers, strict=True):
            assert answer["choices"][0]["text"] == expected
    graph.audit()


def test_decode_computed_no_prompt_token_and_got_exactly_the_prompts_kv(graph: ServedGraph) -> None:
    (decode,) = graph.workers("DecodeWorker")
    before = graph.metric(decode, "wavepp_decode_kv_received_bytes_total")
    lengths = (1, 40, 333)
    for length in lengths:
        graph.complete([length % 250] * length, max_tokens=5)
    received = graph.metric(decode, "wavepp_decode_kv_received_bytes_total") - before
    assert received == sum(lengths) * KV_BYTES_PER_TOKEN
    assert graph.metric(decode, "wavepp_decode_prompt_tokens_computed_total") == 0


def test_streaming_and_first_token_logprobs(graph: ServedGraph, reference: Reference) -> None:
    prompt = [9, 8, 7, 6, 5]
    expected = reference.text(prompt, 6)
    body = {"model": graph.running.model, "prompt": prompt, "max_tokens": 6, "temperature": 0, "stream": True}
    with graph.http.stream("POST", "/v1/completions", json=body) as response:
        lines = [line[6:] for line in response.iter_lines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    import json

    pieces = [json.loads(line)["choices"] for line in lines[:-1]]
    assert "".join(choice["text"] for choices in pieces for choice in choices) == expected
    answer = graph.complete(prompt, max_tokens=6, logprobs=3)
    logprobs = answer["choices"][0]["logprobs"]["token_logprobs"]
    assert len(logprobs) == 6
    assert all(value <= 0 for value in logprobs)


def test_stop_strings_seeds_and_limits(graph: ServedGraph, reference: Reference) -> None:
    prompt = [3, 1, 4, 1, 5]
    text = reference.text(prompt, 12)
    stop = text[5:7]
    answer = graph.complete(prompt, max_tokens=12, stop=[stop])
    assert answer["choices"][0]["text"] == text[: text.index(stop)]
    assert answer["choices"][0]["finish_reason"] == "stop"
    one = graph.complete(prompt, max_tokens=1)
    assert one["choices"][0]["text"] == text[:1]
    assert one["choices"][0]["finish_reason"] == "length"
    sampled = [
        graph.complete(prompt, max_tokens=12, temperature=1.0, top_p=0.9, seed=seed)["choices"][0]["text"]
        for seed in (1, 1, 2)
    ]
    assert sampled[0] == sampled[1]
    assert sampled[0] != sampled[2]
    graph.audit()


def test_an_answer_with_stop_strings_has_the_text_of_one_without(graph: ServedGraph) -> None:
    """Also where the prompt ends within a character, and where answers are bytes that are none."""
    any_byte = {str(token): 2 for token in range(100, 256)}
    euro_and_more = [158, 224, 105, 172]
    for seed in range(12):
        prompt = [*range(60, 70), *euro_and_more[: 1 + seed % 4]]
        asked = {"max_tokens": 16, "temperature": 1.5, "seed": seed, "logit_bias": any_byte}
        if seed >= 8:
            ends = [110, 130, 180, 220]
            asked |= {"stop_token_ids": ends, "logit_bias": any_byte | {str(token): 4 for token in ends}}
        text = graph.complete(prompt, **asked)["choices"][0]["text"]
        assert graph.complete(prompt, stop=["zzzzz"], **asked)["choices"][0]["text"] == text
        if text:
            stopped = graph.complete(prompt, stop=[text[-1:]], **asked)["choices"][0]["text"]
            assert stopped == text[: text.index(text[-1:])]


def test_each_adapter_is_a_model_with_answers_and_a_cache_of_its_own(
    graph: ServedGraph,
    reference: Reference,
    ascii_model: Path,
    adapters: dict[str, Path],
    tmp_path: Path,
) -> None:
    merged = {name: Reference(merge(tmp_path / name, ascii_model, path)) for name, path in adapters.items()}
    models = {graph.running.model: reference, **merged}

    def listed() -> set[str]:
        return {each["id"] for each in graph.http.get("/v1/models").json()["data"]}

    graph.running.wait_for(lambda: listed() == models.keys())
    draw = random.Random(23)
    shared = [draw.randrange(256) for _ in range(300)]
    texts = {name: model.text(shared, 12) for name, model in models.items()}
    assert len(set(texts.values())) == len(models)
    for name, text in texts.items():
        cold = graph.complete(shared, max_tokens=12, model=name)
        assert (cold["model"], cold["choices"][0]["text"], cached(cold)) == (name, text, 0)
    cases = [
        (name, longer, model.text(longer, 12))
        for name, model in models.items()
        for longer in ([*shared, number, 2 * number] for number in range(2))
    ]
    with ThreadPoolExecutor(len(cases)) as pool:
        answers = pool.map(lambda case: graph.complete(case[1], max_tokens=12, model=case[0]), cases)
        for (name, _, expected), warm in zip(cases, answers, strict=True):
            assert warm["choices"][0]["text"] == expected, name
            assert cached(warm) > len(shared) - 18
    chat = graph.post(
        "/v1/chat/completions", model="poet", messages=[{"role": "user", "content": "Hello"}], max_tokens=3
    )
    assert (chat.status_code, chat.json()["model"]) == (200, "poet"), chat.text
    assert graph.post("/v1/completions", prompt=shared, model="painter").status_code == 404
    graph.audit()

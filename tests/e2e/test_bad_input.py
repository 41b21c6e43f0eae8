"""A bad request gets 4xx with a sentence at once, hurts nobody, and leaves nothing behind."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.support.served_graph import ServedGraph

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def graph(start: Callable[..., ServedGraph], ascii_model: Path) -> ServedGraph:
    return start(
        "graphs:agg_wavepp", f"--Common.model={ascii_model}", "--Common.dtype=float32", "--Worker.pp=2"
    )


BAD = [
    ({"prompt": [1] * 9000}, "tokens"),
    ({"prompt": []}, "empty"),
    ({"prompt": ""}, "empty"),
    ({"prompt": [1, 2, 100_000]}, "vocabulary"),
    ({"prompt": [1], "no_such_parameter": 1}, "no_such_parameter"),
    ({"prompt": [1], "temperature": -1}, "emperature"),
    ({"prompt": [1], "n": 2}, "n"),
]


@pytest.mark.parametrize(("body", "complaint"), BAD)
def test_a_bad_request_is_refused_with_a_sentence(graph: ServedGraph, body: dict, complaint: str) -> None:
    answer = graph.post("/v1/completions", max_tokens=2, **body)
    assert 400 <= answer.status_code < 500, answer.text
    assert complaint in answer.text


def test_a_storm_of_good_bad_and_abandoned_requests_leaves_clean_books(graph: ServedGraph) -> None:
    """S36, S37: clients that leave during prefill, hand-off or decode included."""
    seed = random.randrange(2**32)
    draw = random.Random(seed)
    shared = [draw.randrange(256) for _ in range(400)]

    def one(number: int) -> int:
        local = random.Random(seed + number)
        if local.random() < 0.3:
            return graph.post("/v1/completions", max_tokens=2, **local.choice(BAD)[0]).status_code
        prompt = shared[: local.randrange(1, 400)] + [local.randrange(256) for _ in range(30)]
        patience = local.choice((0.01, 0.05, 0.3, 60, 60))
        body = {"model": graph.running.model, "prompt": prompt, "max_tokens": local.randrange(1, 20)}
        try:
            return httpx.post(
                f"{graph.running.base_url}/v1/completions", json=body, timeout=patience
            ).status_code
        except httpx.TimeoutException:
            return 0

    with ThreadPoolExecutor(8) as pool:
        codes = list(pool.map(one, range(200)))
    assert {code for code in codes if code >= 500} == set(), f"seed {seed}: {codes}"
    assert codes.count(200) > 30, f"seed {seed}: {codes}"
    graph.audit()

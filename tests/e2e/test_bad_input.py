"""A bad request gets 4xx with a sentence at once, hurts nobody, and leaves nothing behind."""

from __future__ import annotations

import random
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.e2e.conftest import POISON
from tests.support.served_graph import ServedGraph

pytestmark = pytest.mark.e2e


LONG = 8000
"""Tokens of a prompt that the proxy does not look at unless it fails."""
BAD = [
    ({"prompt": [1] * 9000}, "tokens"),
    ({"prompt": []}, "empty"),
    ({"prompt": ""}, "empty"),
    ({"prompt": [1, 2, 100_000]}, "vocabulary"),
    ({"prompt": [1] * LONG + [100_000]}, "token id 100000 is outside the vocabulary"),
    ({"prompt": [1] * LONG + [100_000], "stream": True}, "token id 100000 is outside the vocabulary"),
    ({"prompt": [1] * LONG + [-1]}, "token id -1 is outside the vocabulary"),
    ({"prompt": [1] * LONG + ["1"], "stream": True}, "1"),
    ({"prompt": [1], "no_such_parameter": 1}, "no_such_parameter"),
    ({"prompt": [1], "temperature": -1}, "emperature"),
    ({"prompt": [1], "best_of": 2}, "best_of"),
    ({"prompt": [1], "temperature": 1, "repetition_penalty": 1e-40, "logprobs": 1}, "repetition_penalty"),
    ({"prompt": [1], "stop_token_ids": [1, 2, 3, 4, 5]}, "5 stop_token_ids; give at most 4"),
]


@pytest.mark.parametrize(("body", "complaint"), BAD)
def test_a_bad_request_is_refused_with_a_sentence(agg: ServedGraph, body: dict, complaint: str) -> None:
    answer = agg.post("/v1/completions", max_tokens=2, **body)
    assert 400 <= answer.status_code < 500, answer.text
    assert complaint in answer.text


COUNTED_NOW = (
    "wavepp_queued_requests",
    "wavepp_running_requests",
    "wavepp_handing_off_requests",
    "wavepp_pending_rooms",
    "wavepp_waves_in_flight",
    "wavepp_decode_running_requests",
    "wavepp_decode_waiting_requests",
    "wavepp_decode_receiving_requests",
)


def test_a_storm_of_good_bad_and_abandoned_requests_leaves_clean_books(agg: ServedGraph) -> None:
    """S36, S37, S66: clients that leave during prefill, hand-off or decode included; no count stays up."""
    seed = random.randrange(2**32)
    draw = random.Random(seed)
    shared = [draw.randrange(256) for _ in range(400)]

    def one(number: int) -> int:
        local = random.Random(seed + number)
        if local.random() < 0.3:
            return agg.post("/v1/completions", max_tokens=2, **local.choice(BAD)[0]).status_code
        prompt = shared[: local.randrange(1, 400)] + [local.randrange(256) for _ in range(30)]
        patience = local.choice((0.01, 0.05, 0.3, 60, 60))
        body = {"model": agg.running.model, "prompt": prompt, "max_tokens": local.randrange(1, 20)}
        try:
            return httpx.post(
                f"{agg.running.base_url}/v1/completions", json=body, timeout=patience
            ).status_code
        except httpx.TimeoutException:
            return 0

    with ThreadPoolExecutor(8) as pool:
        codes = list(pool.map(one, range(200)))
    assert {code for code in codes if code >= 500} == set(), f"seed {seed}: {codes}"
    assert codes.count(200) > 30, f"seed {seed}: {codes}"
    agg.audit()
    (worker,) = agg.workers("Worker")
    deadline = time.monotonic() + 10
    while up := {name: now for name in COUNTED_NOW if (now := agg.metric(worker, name))}:
        assert time.monotonic() < deadline, f"seed {seed}: still up {up}"
        time.sleep(0.1)


def test_a_prompt_that_cannot_be_sampled_fails_alone_and_no_worker_with_it(agg: ServedGraph) -> None:
    """It ended the last rank, and a retry the next replica's."""
    bodies = [{"prompt": [7, 8, 9, POISON if number % 2 else 10, number]} for number in range(8)]
    bodies += [{**body, "temperature": 1, "top_p": 1e-40, "logprobs": 5} for body in bodies]
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda body: agg.post("/v1/completions", max_tokens=8, **body), bodies))
    codes = [answer.status_code for answer in answers]
    assert codes == [200, 500] * 8, [answer.text for answer in answers]
    assert [worker["restarts"] for worker in agg.workers("Worker")] == [0]
    agg.audit()


def test_a_tenant_named_by_a_header_shares_with_nobody_else_and_is_as_short_as_a_salt(
    agg: ServedGraph,
) -> None:
    """It counts before the body's salt."""
    body = {"model": agg.running.model, "prompt": list(range(1, 81)), "max_tokens": 1, "cache_salt": "body"}

    def reused(tenant: str) -> int:
        answer = agg.http.post("/v1/completions", json=body, headers={"x-tenant-id": tenant})
        assert answer.status_code == 200, answer.text
        return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert [reused(tenant) > 0 for tenant in ("one", "one", "other", "one")] == [False, True, False, True]
    long = agg.http.post("/v1/completions", json=body, headers={"x-tenant-id": "t" * 2000})
    assert long.status_code == 400
    assert "x-tenant-id has 2000 bytes" in long.json()["message"]


def test_s38_an_id_chosen_twice_hurts_nobody(agg: ServedGraph) -> None:
    chosen = {"x-dynamo-request-id": str(uuid.uuid4())}
    body = {"model": agg.running.model, "prompt": [1, 2, 3], "max_tokens": 300, "ignore_eos": True}

    def ask(headers: dict[str, str]) -> httpx.Response:
        return agg.http.post("/v1/completions", json={**body, "temperature": 0}, headers=headers)

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(ask, [chosen] * 4))
    texts = [answer.json()["choices"][0]["text"] for answer in answers if answer.status_code == 200]
    refused = [answer for answer in answers if answer.status_code == 400]
    assert len(texts) + len(refused) == 4
    assert refused
    assert all("is in use" in answer.json()["message"] for answer in refused)
    assert set(texts) == {ask({}).json()["choices"][0]["text"]}, "whole, and right"
    assert ask(chosen).status_code == 200
    agg.audit()

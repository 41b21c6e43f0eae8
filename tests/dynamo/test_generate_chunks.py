from __future__ import annotations

import pytest
from wavepp_worker.dynamo.generate_chunks import (
    cancelled_chunk,
    completion_usage,
    prefill_chunk,
    tokens_chunk,
)
from wavepp_worker.model.sampled_token import SampledToken
from wavepp_worker.runtime.protocol.requests import PrefillResult, Timings

TOKENS = (SampledToken(4, -0.5, ((4, -0.5), (9, -1.5))), SampledToken(6, -0.25, ((6, -0.25), (2, -2.0))))
TIMINGS = Timings(queued=0.0, admission=0.0, execution=0.0, total=0.0, stages=())


def test_logprobs_are_aligned_with_the_tokens() -> None:
    chunk = tokens_chunk(TOKENS, logprobs=True)
    assert chunk["token_ids"] == [4, 6]
    assert chunk["log_probs"] == [-0.5, -0.25]
    assert chunk["top_logprobs"][1] == [
        {"rank": 1, "token_id": 6, "token": None, "logprob": -0.25},
        {"rank": 2, "token_id": 2, "token": None, "logprob": -2.0},
    ]


def test_logprobs_come_only_if_asked_for_and_only_with_tokens() -> None:
    assert tokens_chunk(TOKENS, logprobs=False) == {"token_ids": [4, 6], "index": 0}
    assert tokens_chunk((), logprobs=True) == {"token_ids": [], "index": 0}


def test_an_unknown_reuse_is_left_out_of_the_usage() -> None:
    assert completion_usage(3, 2, None) == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    assert completion_usage(3, 2, 0)["prompt_tokens_details"] == {"cached_tokens": 0}


def test_a_prefill_ends_for_length_whatever_its_token() -> None:
    result = PrefillResult(request_id="r", first=TOKENS[0], prompt_tokens=3, reused_tokens=2, timings=TIMINGS)
    chunk = prefill_chunk(result, {"room": 7}, logprobs=False)
    assert (chunk["token_ids"], chunk["finish_reason"]) == ([4], "length")
    assert chunk["disaggregated_params"] == {"room": 7}
    assert chunk["engine_data"] == {"kv_cache_hit": {"prompt_tokens": 3, "reused_tokens": 2}}


@pytest.mark.parametrize("asked", [False, True])
def test_a_prefill_has_its_tokens_logprobs_if_they_were_asked_for(asked: bool) -> None:
    result = PrefillResult(request_id="r", first=TOKENS[0], prompt_tokens=3, reused_tokens=2, timings=TIMINGS)
    chunk = prefill_chunk(result, {}, logprobs=asked)
    assert chunk.get("log_probs") == ([-0.5] if asked else None)
    assert ("top_logprobs" in chunk) == asked


def test_a_cancelled_request_ends_without_a_token() -> None:
    chunk = cancelled_chunk(3, 1)
    assert (chunk["token_ids"], chunk["finish_reason"]) == ([], "cancelled")
    assert chunk["completion_usage"]["total_tokens"] == 4

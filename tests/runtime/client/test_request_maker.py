"""Requests of whatever a caller gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wavepp_worker import EngineConfig, PrefillRequest, SamplingParams, token_ids
from wavepp_worker.errors import InvalidRequest
from wavepp_worker.runtime.client.request_maker import RequestMaker


@pytest.fixture
def maker(tiny_llama: Path) -> RequestMaker:
    return RequestMaker(EngineConfig(model=tiny_llama, top_logprobs=5), 100, 300)


def test_ids_arrays_and_text_become_requests_of_ids_of_their_own(maker: RequestMaker) -> None:
    for prompt in ([1, 2, 3], (1, 2, 3), range(1, 4), np.array([1, 2, 3])):
        request = maker.request(prompt, None, None, "s")
        assert (list(token_ids.unpack(request.tokens)), request.salt) == ([1, 2, 3], "s")
    text = maker.request("hello", None, None, "")
    assert text.prompt_tokens > 0
    assert text.request_id != request.request_id


def test_the_first_tokens_logprob_is_reported_unless_the_caller_makes_the_request_itself(
    maker: RequestMaker,
) -> None:
    greedy, hot = SamplingParams(), SamplingParams(temperature=1.0, logprobs=2)

    def asked(*arguments: Any) -> int | None:
        return maker.request([1], *arguments, "").sampling.logprobs

    assert (asked(None, None), asked(greedy, None), asked(hot, None)) == (0, 0, 2)
    assert (asked(None, 3), asked(hot, 3), asked(hot, 0)) == (3, 3, 0)
    assert maker.request([1], hot, 3, "").sampling.temperature == 1.0
    assert PrefillRequest.of("r", [1]).sampling.logprobs == 0


def test_a_request_is_taken_as_it_is_and_nothing_beside_it(maker: RequestMaker) -> None:
    request = PrefillRequest(request_id="mine", tokens=token_ids.pack([1]))
    assert maker.request(request, None, None, "") is request
    for beside in ((SamplingParams(), None, ""), (None, 1, ""), (None, None, "salt")):
        with pytest.raises(InvalidRequest, match=r"request mine .*PrefillRequest\.of"):
            maker.request(request, *beside)


@pytest.mark.parametrize("prompt", [[], [300], [1] * 101, ["a"], [[1]], b"abc", None, [1.5], [True]])
def test_what_cannot_run_is_refused(maker: RequestMaker, prompt: Any) -> None:
    with pytest.raises(InvalidRequest):
        maker.accepted(maker.request(prompt, None, None, ""))


def test_what_the_engine_does_not_do_is_refused(maker: RequestMaker) -> None:
    for wrong, says in (
        (PrefillRequest.of("r", [1], handoff=True), "handoff=none"),
        (PrefillRequest.of("r", [1], sampling=SamplingParams(logprobs=6)), "logprobs is 6"),
        (
            PrefillRequest.of("r", [1], sampling=SamplingParams(logit_bias=((-1, 5.0),))),
            "logit_bias: token id -1 is outside the vocabulary",
        ),
        (PrefillRequest.of("r", [1], sampling="hot"), "cannot be sent"),  # type: ignore[arg-type]
        (PrefillRequest.of("r", [1], salt="s" * 2000), "salt has 2000 bytes"),
    ):
        with pytest.raises(InvalidRequest, match=says):
            maker.accepted(wrong)


def test_every_request_gets_a_seed(maker: RequestMaker) -> None:
    seeds = {maker.accepted(PrefillRequest.of("r", [1])).sampling.seed for _ in range(3)}
    assert len(seeds) == 3
    assert None not in seeds

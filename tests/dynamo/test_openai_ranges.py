from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from wavepp_worker.dynamo.openai_checks import refusal
from wavepp_worker.dynamo.openai_ranges import (
    sampling_out_of_range,
    stop_out_of_range,
    stop_without_effect,
    too_few_tokens,
)

Check = Callable[[Mapping[str, Any]], str | None]


@pytest.mark.parametrize(
    ("check", "body", "sentence"),
    [
        (sampling_out_of_range, {"repetition_penalty": 1e-40, "temperature": 1}, "repetition_penalty"),
        (sampling_out_of_range, {"temperature": float("inf")}, "temperature"),
        (sampling_out_of_range, {"temperature": float("nan")}, "temperature"),
        (sampling_out_of_range, {"min_p": 10**400}, "too large"),
        (sampling_out_of_range, {"top_k": 2**64}, "top_k"),
        (sampling_out_of_range, {"seed": 2**64}, "seed"),
        (stop_out_of_range, {"stop": list("abcde")}, "5 stop strings"),
        (stop_out_of_range, {"stop_token_ids": [1, 2, 3, 4, 4]}, "5 stop_token_ids; give at most 4"),
        (too_few_tokens, {"min_tokens": 4, "max_tokens": 3}, "min_tokens=4 is more than max_tokens=3"),
        (
            too_few_tokens,
            {"min_tokens": 4, "max_completion_tokens": 3, "max_tokens": 9},
            "max_completion_tokens=3",
        ),
    ],
)
def test_what_no_worker_takes_is_named(check: Check, body: dict[str, Any], sentence: str) -> None:
    assert sentence in (check(body) or "")


@pytest.mark.parametrize(
    "check",
    [sampling_out_of_range, stop_out_of_range, stop_without_effect, too_few_tokens],
)
@pytest.mark.parametrize(
    "body",
    [
        {},
        {
            "temperature": 0,
            "top_p": 0,
            "top_k": -1,
            "seed": -5,
            "stop": "a",
            "min_tokens": 2,
            "max_tokens": 2,
        },
        {"temperature": "hot", "top_k": 1.5, "seed": True, "stop": 7, "min_tokens": "4", "max_tokens": [3]},
        {"temperature": None, "stop": list("abcd"), "min_tokens": 4, "max_tokens": None},
        {"min_tokens": 0, "stop_token_ids": [0, 1, 2, 3]},
        {"min_tokens": 1, "stop_token_ids": [0, "2", True, 3]},
        {"stop_token_ids": "12345"},
        {"stop": "a", "stop_token_ids": [1], "ignore_eos": False},
        {"stop": [], "stop_token_ids": None, "ignore_eos": True},
    ],
)
def test_what_fits_or_is_of_another_type_is_left_to_the_frontend(check: Check, body: dict[str, Any]) -> None:
    assert check(body) is None


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize(("key", "value"), [("stop", "a"), ("stop", ["a", "b"]), ("stop_token_ids", [3])])
def test_what_should_end_an_answer_without_an_end_is_refused(path: str, key: str, value: Any) -> None:
    """Dynamo 1.4.2 and 1.6.1 hand neither on to workers beside ``ignore_eos``."""
    sentence = refusal(path, {key: value, "ignore_eos": True, "max_tokens": 9}, 300)
    assert sentence == f"{key} beside ignore_eos is not supported; leave out the one or the other"

"""What may be asked of the choosing of a token."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from wavepp_worker.errors import InvalidRequest
from wavepp_worker.model.sampling_params import (
    SamplingParams,
    check_sampling,
    resolve_seed,
)


def test_seed_is_resolved_once() -> None:
    assert resolve_seed(SamplingParams(seed=7)).seed == 7
    fresh = {resolve_seed(SamplingParams()).seed for _ in range(5)}
    assert None not in fresh
    assert len(fresh) == 5


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -0.1},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"top_p": math.nan},
        {"top_k": -1},
        {"min_p": -0.1},
        {"min_p": 1.5},
        {"presence_penalty": 2.1},
        {"frequency_penalty": -2.1},
        {"repetition_penalty": 0.0},
        {"repetition_penalty": 1e-40},
        {"repetition_penalty": 1e300},
        {"repetition_penalty": math.inf},
        {"repetition_penalty": math.nan},
        {"top_k": 2**31},
        {"seed": 2**64},
        {"logprobs": -1},
        {"logprobs": 21},
    ],
)
def test_out_of_range_is_refused_by_name(wrong: dict[str, Any]) -> None:
    name, value = next(iter(wrong.items()))
    with pytest.raises(InvalidRequest, match=re.escape(f"{name} is {value}, but must be ")):
        check_sampling(SamplingParams(**wrong), 20)


def test_extremes_are_accepted() -> None:
    check_sampling(SamplingParams(), 20)
    check_sampling(
        SamplingParams(temperature=2.0, top_p=1e-9, top_k=10**9, min_p=1.0, seed=2**63, logprobs=20), 20
    )

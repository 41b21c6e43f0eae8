from __future__ import annotations

from typing import Any

import pytest
from wavepp_worker.errors import InvalidRequest
from wavepp_worker.model.sampling_params import SamplingParams
from wavepp_worker.runtime.protocol.requests import PrefillRequest, check_types


def test_what_a_rank_can_read_passes() -> None:
    extreme = SamplingParams(seed=2**64 - 1, temperature=1, logprobs=0)
    check_types(PrefillRequest.of("r", [1, 2], salt="s", sampling=extreme, banned=[7], handoff=True))


@pytest.mark.parametrize(
    "wrong",
    [
        {"request_id": 7},
        {"request_id": "\ud800"},
        {"salt": None},
        {"lora": b"x"},
        {"handoff": "yes"},
        {"banned": (2**70,)},
        {"banned": (1.5,)},
        {"sampling": SamplingParams(seed=1.5)},  # type: ignore[arg-type]
        {"sampling": SamplingParams(top_k=2**64)},
        {"sampling": SamplingParams(temperature="hot")},  # type: ignore[arg-type]
        {"sampling": "greedy"},
    ],
    ids=str,
)
def test_what_no_rank_can_read_is_refused(wrong: dict[str, Any]) -> None:
    """A rank that cannot read a message has to end."""
    with pytest.raises(InvalidRequest, match="cannot be sent to the ranks"):
        check_types(PrefillRequest(**{"request_id": "r", "tokens": b"", **wrong}))

"""The longest request of a decode engine."""

from __future__ import annotations

from pathlib import Path

import pytest
from wavepp_worker.decode.config import DecodeConfig
from wavepp_worker.decode.longest_request import longest_request
from wavepp_worker.errors import ConfigError


def test_it_is_what_is_asked_for_else_the_models_context() -> None:
    assert longest_request(DecodeConfig(model=Path("/m")), 1024) == 1024
    assert longest_request(DecodeConfig(model=Path("/m"), max_model_len=100, kv_tokens=112), 1024) == 100


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"max_model_len": 1025}, "max_model_len is 1025, but the model's context length is 1024"),
        (
            {"kv_tokens": 1023},
            "kv_tokens gives a pool of 1008 tokens in blocks of 16, too small for one request of 1024",
        ),
    ],
)
def test_what_cannot_hold_one_request_is_refused(values: dict[str, int], sentence: str) -> None:
    with pytest.raises(ConfigError, match=f"^{sentence}"):
        longest_request(DecodeConfig(model=Path("/m"), **values), 1024)

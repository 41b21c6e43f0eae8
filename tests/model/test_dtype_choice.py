"""What a model is computed in."""

from __future__ import annotations

import pytest
from wavepp_worker.errors import ConfigError
from wavepp_worker.model import dtype_choice
from wavepp_worker.model.dtype_choice import dtype_name


@pytest.mark.parametrize(
    ("asked", "stored", "device", "instructions", "chosen"),
    [
        ("auto", "bfloat16", "cpu", True, "bfloat16"),
        ("auto", "bfloat16", "cpu", False, "float32"),
        ("auto", "bfloat16", "cuda", False, "bfloat16"),
        ("auto", "float16", "cuda", True, "float32"),
        ("auto", "float32", "cpu", True, "float32"),
        ("bfloat16", "float32", "cpu", False, "bfloat16"),
    ],
)
def test_auto_is_the_checkpoints_where_that_is_fast_and_exact(
    asked: str, stored: str, device: str, instructions: bool, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dtype_choice, "_cpu_has_bfloat16", lambda: instructions)
    assert dtype_name(asked, stored, device) == chosen


def test_another_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^dtype: float16 is not supported; use auto, float32 or bfloat16"):
        dtype_name("float16", "float16")
